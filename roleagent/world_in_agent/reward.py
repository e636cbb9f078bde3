"""From predictions to rewards: r~, R_pre, G_t, R_t and R(tau).

    r~[t, h] = m(s^_{t,h}, s_{t+h})             for t + h <= T + 1; other cells are undefined (NaN), never 0
    R_pre(a_t) = mean over defined h of r~[t, h]
    G_t = sum_{k >= t} gamma^(k - t) r_k
    R_t = G_t (1 + w R_pre(a_t))                modulated step return
    R(tau) = R_E(tau) (1 + w mean_t R_pre(a_t)) trajectory reward

In this form, the `multiplicative` one, the prediction reward never adds: a trajectory without task reward gets none,
whatever it predicted. The `additive` one is there to be compared with (docs/reward-hacking.md), and pays every match:

    R_t = G_t + w R_pre(a_t)                    R(tau) = R_E(tau) + w mean_t R_pre(a_t)

G_t is the discounted return and not r_t, because r_t is zero everywhere but in the winning step of most tasks, and
the factor would then act on that step alone. Penalties are amounts >= 0 that are subtracted after modulation.

Source: the method, section 1; equations of the paper as quoted there. Arrays index t from 0, so row t is step t + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from roleagent.types import Trajectory
from roleagent.world_in_agent.matching import MatchUnit, match_many

Array = NDArray[np.float64]
Form = Literal["multiplicative", "additive"]


def prediction_matrix(trajectory: Trajectory, unit: MatchUnit = "words", horizon: int | None = None) -> Array:
    """Return r~ of one trajectory; shape [T, H]. See :func:`prediction_matrices`."""
    return prediction_matrices([trajectory], unit, horizon)[0]


def prediction_matrices(
    trajectories: Sequence[Trajectory], unit: MatchUnit = "words", horizon: int | None = None
) -> list[Array]:
    """Return r~ of every trajectory, each of shape [T, H].

    A cell is NaN only where t + h > T + 1, that is where there is no true state to compare with. A prediction that
    is missing, empty or not readable scores 0: silence must not pay.

    Args:
        trajectories: any number; all their pairs of texts are compared in one go.
        unit: see `matching`.
        horizon: H. None takes the longest list of predictions of all the trajectories.
    """
    if horizon is None:
        horizon = max((len(step.predictions) for run in trajectories for step in run.steps), default=0)
    cells: list[float] = []  # all matrices, row after row: 0 where defined, until the match is known
    where: list[int] = []
    pairs: list[tuple[str, str]] = []
    undefined = float("nan")
    for run in trajectories:
        states = run.states
        for t, step in enumerate(run.steps):
            defined = min(horizon, len(states) - 1 - t)
            for h, prediction in enumerate(step.predictions[:defined]):
                if prediction:
                    where.append(len(cells) + h)
                    pairs.append((prediction, states[t + 1 + h]))
            cells += [0.0] * defined
            cells += [undefined] * (horizon - defined)
    values = np.asarray(cells, dtype=np.float64)
    values[where] = match_many(pairs, unit)
    rows = values.reshape(-1, horizon) if horizon else np.zeros((sum(len(run.steps) for run in trajectories), 0))
    ends = np.cumsum([len(run.steps) for run in trajectories]).tolist()
    return [rows[end - len(run.steps) : end] for run, end in zip(trajectories, ends, strict=True)]


def r_pre(matrix: Array) -> Array:
    """Return R_pre of every step, the mean of the row's defined cells; shape [T]. It is 0 where H = 0."""
    defined = ~np.isnan(matrix)
    totals = np.where(defined, matrix, 0.0).sum(axis=1)
    means: Array = totals / np.maximum(defined.sum(axis=1), 1)
    return means


def mean_match(trajectories: Sequence[Trajectory], unit: MatchUnit = "words", horizon: int | None = None) -> float:
    """Return the mean of R_pre over all steps of all trajectories, 0 without steps: how well the next states are known.

    Arguments as in :func:`prediction_matrices`.
    """
    values = [r_pre(matrix) for matrix in prediction_matrices(trajectories, unit, horizon)]
    joined = np.concatenate(values) if values else np.zeros(0)
    return float(joined.mean()) if joined.size else 0.0


def step_returns(rewards: Sequence[float], discount: float = 0.95) -> Array:
    """Return G_t = r_t + gamma G_{t+1} of every step; shape [T]."""
    returns = [0.0] * len(rewards)
    following = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        returns[t] = following = rewards[t] + discount * following
    return np.asarray(returns, dtype=np.float64)


def modulated_returns(
    returns: Array, prediction_reward: Array, weight: float = 1.0, form: Form = "multiplicative"
) -> Array:
    """Return R_t = G_t (1 + w R_pre(a_t)), or G_t + w R_pre(a_t); all arrays have the same shape."""
    if form == "additive":
        added: Array = returns + weight * prediction_reward
        return added
    modulated: Array = returns * (1.0 + weight * prediction_reward)
    return modulated


def prediction_bonus(
    returns: Array, prediction_reward: Array, weight: float = 1.0, form: Form = "multiplicative"
) -> Array:
    """Return R_t - G_t, what the predictions alone pay: w G_t R_pre(a_t), or w R_pre(a_t); same shape as the inputs."""
    bonus: Array = weight * prediction_reward * (1.0 if form == "additive" else returns)
    return bonus


def trajectory_reward(
    outcome: float, prediction_reward: Array, weight: float = 1.0, form: Form = "multiplicative"
) -> float:
    """Return R(tau) = R_E (1 + w mean_t R_pre(a_t)), or R_E + w mean_t R_pre(a_t); without steps R_pre = 0."""
    mean = float(prediction_reward.mean()) if prediction_reward.size else 0.0
    return outcome + weight * mean if form == "additive" else outcome * (1.0 + weight * mean)


def step_penalties(trajectory: Trajectory, invalid_action: float = 0.1, overlong: float = 0.0) -> Array:
    """Return what is subtracted from each step's return after modulation; shape [T], amounts >= 0.

    `invalid_action` is charged for an action that the environment refused or that could not be read, once; and
    `overlong` for a turn that hit its token limit. Both can meet in one step.
    """
    return np.asarray(
        [
            invalid_action * (step.malformed or not step.valid_action) + overlong * step.truncated
            for step in trajectory.steps
        ],
        dtype=np.float64,
    )
