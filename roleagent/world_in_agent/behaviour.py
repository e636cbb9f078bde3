"""Does the policy make its next state easy to foretell? Steps that lead nowhere, and what the predictions pay for them.

    no-op    s_{t+1} = s_t
    toggle   t >= 2 and s_{t+1} = s_{t-1} != s_t                     the step undoes the step before it
             or t >= 3 and a_t = a_{t-2} != a_{t-1}, all readable    open, close, open

A policy that would rather be right about the next state than solve its task has two cheap ways: do nothing, whose
result it knows, and go to and fro between two states that it has seen. Both are innocent in small numbers: what counts
is whether they grow in training, and more than without the prediction reward (docs/reward-hacking.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from roleagent.types import Step, Trajectory

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

VERBS = 10  #: verbs that are told apart in one batch; all others are `other`
OTHER = "other"
INVALID = "invalid"  #: the environment did not understand or allow the action, or there was none
_VERB_LENGTH = 24


def no_ops(trajectory: Trajectory) -> Flags:
    """Return which steps left the observation as it was; shape [T]."""
    states = trajectory.states
    return np.asarray([states[t] == states[t + 1] for t in range(len(trajectory.steps))], dtype=np.bool_)


def toggles(trajectory: Trajectory) -> Flags:
    """Return which steps go back: to the observation of two steps before, or to the action before the last; [T]."""
    states = trajectory.states
    actions = ["" if step.malformed else step.action for step in trajectory.steps]
    found = np.zeros(len(actions), dtype=np.bool_)
    for t in range(1, len(actions)):
        undone = states[t + 1] == states[t - 1] != states[t]
        again = t >= 2 and all(actions[t - 2 : t + 1]) and actions[t] == actions[t - 2] != actions[t - 1]
        found[t] = undone or again
    return found


def verbs(steps: Sequence[Step]) -> list[str]:
    """Return the type of each step's action: its first word, `other`, or `invalid`.

    Words come from the model, so only those of actions that the environment carried out are names, the `VERBS` most
    frequent of them; of equally frequent ones the first in alphabetical order. Characters other than ASCII letters,
    digits and `_` become `_`.
    """
    words = [_verb(step) for step in steps]
    counts = Counter(word for word in words if word)
    kept = set(sorted(counts, key=lambda word: (-counts[word], word))[:VERBS])
    return [INVALID if not word else word if word in kept else OTHER for word in words]


def behaviour_metrics(trajectories: Sequence[Trajectory], prediction_reward: Array, bonus: Array) -> dict[str, float]:
    """Return how well steps were foretold, and what they were paid for it, by what they did.

    `match/no_op`, `match/toggle`, `match/moving` (neither) and `match/action/<verb>` are means of R_pre.
    `match/no_op_mass` and `match/toggle_mass` are the shares of the sum of R_pre that such steps have, and
    `bonus/no_op_mass` and `bonus/toggle_mass` their shares of the sum of |R_t - G_t|, which is what was paid. A mean
    over no step and a share of nothing are left out.

    Args:
        trajectories: with S steps in all.
        prediction_reward: R_pre(a_t), trajectory after trajectory, [S].
        bonus: R_t - G_t, what the predictions alone pay, [S].
    """
    steps = [step for run in trajectories for step in run.steps]
    if not steps:
        return {}
    idle = np.concatenate([no_ops(run) for run in trajectories])
    back = np.concatenate([toggles(run) for run in trajectories])
    metrics: dict[str, float] = {}
    for name, chosen in (("no_op", idle), ("toggle", back), ("moving", ~(idle | back))):
        if chosen.any():
            metrics[f"match/{name}"] = float(prediction_reward[chosen].mean())
    for prefix, amounts in (("match", prediction_reward), ("bonus", np.abs(bonus))):
        whole = float(amounts.sum())
        if whole > 0:
            metrics[f"{prefix}/no_op_mass"] = float(amounts[idle].sum()) / whole
            metrics[f"{prefix}/toggle_mass"] = float(amounts[back].sum()) / whole
    kinds = np.asarray(verbs(steps))
    for kind in sorted(set(kinds.tolist())):
        metrics[f"match/action/{kind}"] = float(prediction_reward[kinds == kind].mean())
    return metrics


def action_shares(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return `action_share/<verb>`, the share of the steps that each type of action has; they sum to 1."""
    kinds = Counter(verbs([step for run in trajectories for step in run.steps]))
    return {f"action_share/{kind}": count / kinds.total() for kind, count in sorted(kinds.items())}


def _verb(step: Step) -> str:
    """The first word of an action that was carried out, fit for a metric's name; "" for any other."""
    words = step.action.casefold().split() if step.valid_action and not step.malformed else []
    if not words:
        return ""
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in words[0])[:_VERB_LENGTH]
