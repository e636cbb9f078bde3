"""What to try next: rules of thumb over a run's last iterations, each naming the number that set it off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roleagent.tracking.history import History, column

_RECENT = 10


@dataclass(frozen=True, slots=True)
class Rule:
    """A hint that is given when a metric's recent mean passes a threshold."""

    key: str
    holds: Callable[[float], bool]
    advice: str  #: takes the mean as {value}


_RULES = (
    Rule(
        "groups/degenerate",
        lambda share: share > 0.5,
        "{value:.0%} of the groups have equal rewards and teach little or nothing: use more episodes a task "
        "(`rollout.group_size`) or more tasks (`rollout.tasks_per_iteration`).",
    ),
    Rule(
        "rollout/malformed_share",
        lambda share: share > 0.1,
        "{value:.0%} of the turns cannot be read: give more room (`rollout.max_turn_tokens`) or warm the model up on "
        "the turn format.",
    ),
    Rule(
        "rollout/truncated_share",
        lambda share: share > 0.1,
        "{value:.0%} of the turns hit the token limit: raise `rollout.max_turn_tokens` or set "
        "`rollout.overlong_penalty`.",
    ),
    Rule(
        "rollout/invalid_action_share",
        lambda share: share > 0.2,
        "{value:.0%} of the actions are not possible: raise `rollout.invalid_action_penalty`.",
    ),
    Rule(
        "rollout/stop/max_steps",
        lambda share: share > 0.4,
        "{value:.0%} of the episodes run out of steps: raise `environment.max_steps`, or look at what they repeat.",
    ),
    Rule(
        "rollout/stop/context_full",
        lambda share: share > 0.05,
        "{value:.0%} of the episodes fill the context: raise `policy.max_context` or use `rollout.context=step`.",
    ),
    Rule(
        "update/kl",
        lambda kl: kl > 0.5,
        "the policy is {value:.2f} nats from where it began: lower `learner.learning_rate` or raise "
        "`learner.kl_coefficient`.",
    ),
    Rule(
        "update/entropy",
        lambda nats: nats < 0.02,
        "the entropy is down to {value:.3f} nats a token, so episodes hardly differ: raise `rollout.temperature` or "
        "`learner.entropy_coefficient`.",
    ),
    Rule(
        "mismatch/capped_share",
        lambda share: share > 0.01,
        "{value:.1%} of the tokens hit the importance cap: sampler and trainer disagree; use `policy.dtype=float32`.",
    ),
    Rule(
        "update/nonfinite_steps",
        lambda steps: steps > 0,
        "some optimizer steps were not finite and were skipped: lower `learner.learning_rate`.",
    ),
    Rule(
        "diagnosis/quarantined_share",
        lambda share: share > 0.3,
        "{value:.0%} of the diagnoses do not parse: give them more room (`agent_in_world.max_diagnosis_tokens`) or a "
        "lower `agent_in_world.temperature`.",
    ),
)


def suggestions(history: History) -> list[str]:
    """Return the hints that hold for the last ten iterations, at least one line."""
    found = [
        rule.advice.format(value=mean)
        for rule in _RULES
        if (mean := _recent_mean(history, rule.key)) is not None and rule.holds(mean)
    ]
    return [*found, *_trend(history)] or [
        "Nothing stands out: more iterations, or another seed to see how much of the gain is chance."
    ]


def _recent_mean(history: History, key: str) -> float | None:
    _, values = column(history, key)
    recent = values[-_RECENT:]
    return sum(recent) / len(recent) if recent else None


def _trend(history: History) -> Sequence[str]:
    x, values = column(history, "success/heldout")
    if len(values) < 3:
        return []
    best = max(range(len(values)), key=lambda i: values[i])
    if best < len(values) - 1 and values[best] - values[-1] > 0.05:
        return [
            f"held-out success was {values[best]:.0%} at iteration {x[best]:.0f} and is {values[-1]:.0%} now: train on "
            "from that iteration's checkpoint (its folder as `policy.model`) with a lower `learner.learning_rate`."
        ]
    if values[-1] - values[-2] > 0.02 and best == len(values) - 1:
        return [
            "held-out success was highest at the end: train with more `iterations`, or on from the last checkpoint "
            "(its folder as `policy.model`)."
        ]
    return []
