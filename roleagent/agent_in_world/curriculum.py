"""Which tasks are practised: a mixture of the uniform distribution and of tasks that resemble current failures.

    p = (1 - lambda) * uniform + lambda * softmax_tau(relevance)        (the method, section 2, "Reshaping")

The softmax runs over tasks whose effective relevance is above 0; without any, p is uniform. Relevance lies in [0, 1]:
it is the similarity to the closest current failure, it fades by `rho` each iteration, and what counts is the part
that the task's last group failed, `relevance * (1 - success rate)`, so a mastered task returns to the base rate. No
weight can only grow. With `emphasis: learnable` what counts is `relevance * 4 s (1 - s)`, s the success rate: the
variance of the outcome, without which a group has no advantage (Foster et al. 2025, arXiv 2502.12272). The largest
probability is bounded exactly, by water-filling.

Pure NumPy: no model, no store, no generator that lives on. The state is a small JSON-able mapping.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from roleagent.errors import ConfigError
from roleagent.seeding import generator

if TYPE_CHECKING:
    from roleagent.config.models import AgentInWorldConfig

Source = Literal["uniform", "relevance"]
FloatArray = NDArray[np.float64]

FORGOTTEN = 1e-3  #: relevance below this is set to 0; with rho 0.9 a task is forgotten after 66 iterations
_LOWEST_LOGIT = -600.0  # keeps every relevant task above 0 in float64 when tau is tiny
_STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Draw:
    """A drawn task, the part of the mixture that drew it, and its probability p in the distribution."""

    task_id: str
    source: Source
    probability: float


@dataclass(frozen=True, slots=True)
class Mixture:
    """The two parts of p over the pool, each [M]: p = uniform + relevance, and p sums to 1."""

    uniform: FloatArray
    relevance: FloatArray

    @property
    def probabilities(self) -> FloatArray:
        """p of every task, [M]."""
        return self.uniform + self.relevance


def bounded_mixture(effective: FloatArray, *, share: float, temperature: float, max_probability: float) -> Mixture:
    """Return the bounded mixture over M tasks.

    Args:
        effective: [M] effective relevance, 0 where a task is not relevant.
        share: lambda in [0, 1].
        temperature: tau of the softmax.
        max_probability: bound of every p; at least 1 / M is used, since no distribution could stay below it.

    The softmax mass above the bound flows to the other relevant tasks in proportion to their weight, until all of
    them are at the bound; what is left then goes evenly to the tasks that are not relevant.
    """
    size = effective.size
    relevant = np.flatnonzero(effective > 0)
    if not relevant.size or share == 0:
        return Mixture(np.full(size, 1 / size), np.zeros(size))
    base = (1 - share) / size
    room = max(max_probability, 1 / size) - base  # of the relevance part of one task
    logits = np.maximum((effective[relevant] - effective.max()) / temperature, _LOWEST_LOGIT)
    weights = np.exp(logits)
    part = np.zeros(size)
    part[relevant] = _fill(weights / weights.sum(), share, room)
    uniform = np.full(size, base)
    rest = size - relevant.size
    left = share - part.sum()
    if rest and left > 0:
        uniform[effective <= 0] += left / rest
    elif left > 0:  # rounding, or every task relevant and at the bound: p is uniform
        part[relevant] += left / size
    return Mixture(uniform, part)


def _fill(weights: FloatArray, amount: float, room: float) -> FloatArray:
    """Share `amount` out in proportion to `weights` (> 0), at most `room` each; all get `room` if it is too much."""
    if room * weights.size <= amount:
        return np.full(weights.size, room)
    order = np.argsort(-weights, kind="stable")
    ordered = weights[order]
    behind = np.cumsum(ordered[::-1])[::-1]  # weight of a task and of all smaller ones
    full = np.arange(weights.size)  # tasks at the bound before this one
    rate = (amount - full * room) / behind  # what one unit of weight gets if exactly those are full
    first = int(np.argmax(rate * ordered <= room))
    filled = np.empty(weights.size)
    filled[order[:first]] = room
    filled[order[first:]] = np.minimum(rate[first] * ordered[first:], room)
    return filled


class TaskDistribution:
    """The distribution over a pool of training tasks, reshaped after every iteration.

    One iteration: `draw`, play, `observe` the success rates, `add_relevance` of what retrieval found, then
    `end_iteration`. What is added counts from the next draw on; the order of the two in between does not matter.
    """

    def __init__(self, task_ids: Sequence[str], config: AgentInWorldConfig) -> None:
        """Start uniform.

        Args:
            task_ids: the pool, M >= 1 different ids; their order belongs to the state.
            config: reads `enabled`, `mixture`, `softmax_temperature`, `decay`, `emphasis`, `max_probability`.

        Raises:
            ConfigError: the pool is empty or holds a task twice.
        """
        self.task_ids = tuple(task_ids)
        self._index = {task_id: index for index, task_id in enumerate(self.task_ids)}
        if not self.task_ids:
            raise ConfigError("the pool of training tasks is empty; give the environment at least one training task")
        if len(self._index) != len(self.task_ids):
            raise ConfigError("the pool of training tasks holds a task twice; task ids must be unique")
        self._share = config.mixture if config.enabled else 0.0
        self._temperature = config.softmax_temperature
        self._decay = config.decay
        self._emphasis = config.emphasis
        self._max_probability = config.max_probability
        self._relevance: dict[str, float] = {}
        self._pending: dict[str, float] = {}
        self._success: dict[str, float] = {}
        self._solved: dict[str, int] = {}
        self._iterations = 0
        self._mixture: Mixture | None = None

    @property
    def relevance(self) -> dict[str, float]:
        """Relevance in (0, 1] of every task that has one, before the cut by its success rate."""
        return dict(self._relevance)

    @property
    def success_rates(self) -> dict[str, float]:
        """Success rate of the last group of every task that was played."""
        return dict(self._success)

    @property
    def solved(self) -> dict[str, int]:
        """Tasks whose whole group once succeeded, with the last iteration (from 1) in which it did."""
        return dict(self._solved)

    def mixture(self) -> Mixture:
        """Return the present distribution, by part, [M] each in the order of `task_ids`."""
        if self._mixture is None:
            effective = np.zeros(len(self.task_ids))
            for task_id, value in self._relevance.items():
                effective[self._index[task_id]] = value * self._emphasised(task_id)
            self._mixture = bounded_mixture(
                effective,
                share=self._share,
                temperature=self._temperature,
                max_probability=self._max_probability,
            )
        return self._mixture

    def _emphasised(self, task_id: str) -> float:
        """Factor on a task's relevance in [0, 1]; 1 where it was never played."""
        rate = self._success.get(task_id)
        if rate is None:
            return 1.0
        return 4 * rate * (1 - rate) if self._emphasis == "learnable" else 1 - rate

    def probabilities(self) -> FloatArray:
        """Return p, [M] in the order of `task_ids`."""
        return self.mixture().probabilities

    def draw(self, count: int, seed: int, iteration: int) -> list[Draw]:
        """Draw `count` different tasks, one after another, each by p among those that are left.

        The first has exactly the distribution p. Given a task, its source is drawn by the shares of the two parts in
        its p, so (source, task) has the distribution of the mixture. Depends on the state, `seed` and `iteration`.

        Raises:
            ConfigError: the pool has fewer tasks.
        """
        if not 0 <= count <= len(self.task_ids):
            raise ConfigError(
                f"cannot draw {count} different tasks from a pool of {len(self.task_ids)}; "
                "lower rollout.tasks_per_iteration or enlarge the pool"
            )
        parts = self.mixture()
        p = parts.probabilities
        rng = generator(seed, iteration, "task-draw")
        # Exponential clocks with rates p: the order in which they ring is that of draws without replacement
        # (Efraimidis and Spirakis 2006). Tasks with p = 0 (only with lambda = 1) come last, in random order.
        clocks = rng.standard_exponential(p.size)
        with np.errstate(divide="ignore"):
            arrival = clocks / p
        chosen = np.lexsort((clocks, arrival))[:count]
        uniforms = rng.random(count)
        return [
            Draw(
                task_id=self.task_ids[index],
                source="relevance" if uniform * p[index] < parts.relevance[index] else "uniform",
                probability=float(p[index]),
            )
            for index, uniform in zip(chosen.tolist(), uniforms.tolist(), strict=True)
        ]

    def copy(self) -> TaskDistribution:
        """Return an independent distribution with the same pool, settings and state."""
        twin = copy.copy(self)
        twin.load_state_dict(self.state_dict())
        return twin

    def observe(self, results: Mapping[str, float]) -> list[str]:
        """Take the success rates in [0, 1] of the groups played in this iteration.

        Returns:
            The tasks of the pool whose whole group succeeded; their bank records are resolved.
        """
        solved = []
        for task_id, rate in results.items():
            if not 0 <= rate <= 1:
                raise ValueError(f"success rate {rate} of task {task_id} is not in [0, 1]")
            if task_id not in self._index:
                continue
            self._success[task_id] = float(rate)
            if rate == 1:
                self._solved[task_id] = self._iterations + 1
                solved.append(task_id)
        self._mixture = None
        return solved

    def add_relevance(self, relevance: Mapping[str, float]) -> int:
        """Take relevance in [0, 1] by task, as retrieval found it; several calls keep the largest of a task.

        Returns:
            How many tasks were left out because the pool does not have them.
        """
        outside = 0
        for task_id, value in relevance.items():
            if not 0 <= value <= 1:
                raise ValueError(f"relevance {value} of task {task_id} is not in [0, 1]")
            if task_id not in self._index:
                outside += 1
            elif value > 0:
                self._pending[task_id] = max(self._pending.get(task_id, 0.0), float(value))
        return outside

    def end_iteration(self) -> None:
        """Let relevance fade by `rho`, then take in what was added: the larger of the two counts."""
        aged = {task_id: value * self._decay for task_id, value in self._relevance.items()}
        for task_id, value in self._pending.items():
            aged[task_id] = max(aged.get(task_id, 0.0), value)
        self._relevance = {task_id: aged[task_id] for task_id in sorted(aged) if aged[task_id] >= FORGOTTEN}
        self._pending = {}
        self._iterations += 1
        self._mixture = None

    def metrics(self, draws: Collection[Draw] = ()) -> dict[str, float]:
        """Return numbers about the present distribution, and about `draws` when given.

        `entropy` (nats) and `perplexity` (its exponential: tasks effectively in play), `max_probability`,
        `relevant_tasks` (effective relevance above 0), `relevance_share` (mass of the relevance part),
        `drawn_by_relevance` (share).
        """
        parts = self.mixture()
        p = parts.probabilities
        positive = p[p > 0]
        entropy = float(-(positive * np.log(positive)).sum())
        found = {
            "entropy": entropy,
            "perplexity": math.exp(entropy),
            "max_probability": float(p.max()),
            "relevant_tasks": float(np.count_nonzero(parts.relevance)),
            "relevance_share": float(parts.relevance.sum()),
        }
        if draws:
            found["drawn_by_relevance"] = sum(draw.source == "relevance" for draw in draws) / len(draws)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as JSON-able values; numbers survive `json` exactly (shortest round-trip form)."""
        return {
            "version": _STATE_VERSION,
            "pool": self._pool_digest(),
            "iterations": self._iterations,
            "relevance": dict(self._relevance),
            "pending": dict(self._pending),
            "success": dict(self._success),
            "solved": dict(self._solved),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state of :meth:`state_dict`: every later draw is that of the distribution which saved it.

        Raises:
            ConfigError: the state belongs to another pool of tasks or to another version of this class.
        """
        if state.get("version") != _STATE_VERSION:
            raise ConfigError(f"curriculum state has version {state.get('version')}, this code reads {_STATE_VERSION}")
        if state.get("pool") != self._pool_digest():
            raise ConfigError(
                "curriculum state belongs to another pool of training tasks; resume with the environment options of "
                "the run that saved it"
            )
        self._relevance = {str(key): float(value) for key, value in state["relevance"].items()}
        self._pending = {str(key): float(value) for key, value in state["pending"].items()}
        self._success = {str(key): float(value) for key, value in state["success"].items()}
        self._solved = {str(key): int(value) for key, value in state["solved"].items()}
        self._iterations = int(state["iterations"])
        self._mixture = None

    def _pool_digest(self) -> str:
        return hashlib.blake2b("\n".join(self.task_ids).encode(), digest_size=16).hexdigest()
