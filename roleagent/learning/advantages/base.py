"""What an advantage estimator gets and gives, the normalisation they share, and the registry.

To add an estimator, put one file into this folder with a frozen dataclass under `@register("name")`. Its fields are
its knobs and its defaults the vetted recipe; those named `alpha`, `normalisation`, `weight`, `form`, `discount` and
`gae_lambda` are filled from the configuration. `advantage.estimator: name` then selects it. What its paper sets beside
the advantage goes into `roleagent.config.recipes`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from roleagent.errors import ConfigError

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
Normalisation = Literal["mean_std", "mean"]

EPSILON = 1e-6  #: added to the standard deviation
SPAN = 1e-8  #: values that lie within this of each other carry no preference


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """All trajectories of one task, scored. N trajectories, S steps in all, trajectory after trajectory."""

    task_id: str
    outcomes: Array  #: R_E of each trajectory, [N]
    lengths: IntArray  #: T of each trajectory, [N]; S is their sum
    returns: Array  #: G_t, not modulated, [S]
    r_pre: Array  #: R_pre(a_t), [S]; 0 where World-In-Agent is off
    penalties: Array  #: amounts >= 0, subtracted from step returns after modulation, [S]
    state_groups: IntArray  #: id of each step's state group, [S]; ids are 0..G-1
    rewards: Array  #: r_t as the environment paid it, [S]
    values: Array | None = None  #: V(s_t) of a value head, [S]; None where there is none

    def __post_init__(self) -> None:
        steps = int(self.lengths.sum())
        if self.outcomes.shape != self.lengths.shape:
            raise ValueError(f"group {self.task_id}: {self.outcomes.shape} outcomes for {self.lengths.shape} lengths")
        for name in ("returns", "r_pre", "penalties", "state_groups", "rewards", "values"):
            shape = getattr(getattr(self, name), "shape", (steps,))
            if shape != (steps,):
                raise ValueError(f"group {self.task_id}: {name} has shape {shape}, expected {(steps,)}")

    @property
    def owners(self) -> IntArray:
        """Index of the trajectory that each step belongs to, [S]."""
        return np.repeat(np.arange(len(self.lengths), dtype=np.int64), self.lengths)

    def mean_r_pre(self) -> Array:
        """mean_t R_pre(a_t) of each trajectory, [N]; 0 for one without steps."""
        totals = np.bincount(self.owners, weights=self.r_pre, minlength=len(self.lengths))
        means: Array = totals / np.maximum(self.lengths, 1)
        return means

    def split(self, values: Array) -> list[Array]:
        """Cut an array [S] into one array [T] a trajectory."""
        ends = np.cumsum(self.lengths).tolist()
        return [values[end - length : end] for end, length in zip(ends, self.lengths.tolist(), strict=True)]


class Estimator(Protocol):
    """From a scored group to one advantage a step."""

    def trajectory_rewards(self, group: ScoredGroup) -> Array:
        """Return the reward of each trajectory that the estimator compares within the group, [N]."""

    def __call__(self, group: ScoredGroup) -> list[Array]:
        """Return the advantages, one array [T] a trajectory, in the group's order."""


@runtime_checkable
class BatchEstimator(Protocol):
    """An estimator whose statistics go over the whole batch."""

    def over_batch(self, groups: Sequence[ScoredGroup]) -> list[list[Array]]:
        """Return the advantages of every group, in order, as `Estimator.__call__` does for one."""


@runtime_checkable
class ValueEstimator(Protocol):
    """An estimator that needs `ScoredGroup.values`, and teaches the value head."""

    def value_targets(self, group: ScoredGroup) -> list[Array]:
        """Return what V(s_t) is to be, one array [T] a trajectory, in the group's order."""


def advantages_of(estimator: Estimator, groups: Sequence[ScoredGroup]) -> list[list[Array]]:
    """Apply an estimator to a batch: for every group, one array [T] a trajectory."""
    if isinstance(estimator, BatchEstimator):
        return estimator.over_batch(groups)
    return [estimator(group) for group in groups]


def normalise(values: Array, normalisation: Normalisation = "mean_std") -> Array:
    """Return (values - mean) / (std + eps), or values - mean; shape [N].

    `std` is the sample standard deviation (divisor N - 1), as in verl's GRPO and in GiGPO. Values that span at most
    `SPAN` give exactly 0: the test is on max - min, because the computed std of equal numbers need not be 0. So does
    a single value.
    """
    if values.size < 2 or float(values.max() - values.min()) <= SPAN:
        return np.zeros(values.shape)
    centred: Array = values - values.mean()
    if normalisation == "mean":
        return centred
    scaled: Array = centred / (values.std(ddof=1) + EPSILON)
    return scaled


def normalise_within(values: Array, groups: IntArray, normalisation: Normalisation = "mean_std") -> Array:
    """Apply :func:`normalise` inside each group; `values` and `groups` have shape [S], ids are 0..G-1.

    Every member counts once, so a trajectory that comes back to a state counts once a visit (GiGPO, equation 7).
    """
    if not values.size:
        return np.zeros(values.shape)
    sizes = np.bincount(groups)
    highest = np.full(sizes.shape, -np.inf)
    lowest = np.full(sizes.shape, np.inf)
    np.maximum.at(highest, groups, values)
    np.minimum.at(lowest, groups, values)
    alive = (sizes > 1) & (highest - lowest > SPAN)
    means = np.bincount(groups, weights=values) / np.maximum(sizes, 1)
    centred: Array = np.where(alive[groups], values - means[groups], 0.0)
    if normalisation == "mean":
        return centred
    deviations = np.sqrt(np.bincount(groups, weights=centred**2) / np.maximum(sizes - 1, 1))
    scaled: Array = centred / (deviations[groups] + EPSILON)
    return scaled


def normalise_together(parts: Sequence[Array], normalisation: Normalisation = "mean_std") -> list[Array]:
    """Apply :func:`normalise` to all arrays as one, and return them as they were cut."""
    values = normalise(np.concatenate([np.zeros(0), *parts]), normalisation)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return [values[end - len(part) : end] for part, end in zip(parts, ends, strict=True)]


_ESTIMATORS: dict[str, Callable[..., Estimator]] = {}
_Class = TypeVar("_Class", bound=Callable[..., Estimator])


def register(name: str) -> Callable[[_Class], _Class]:
    """Make a dataclass selectable as `advantage.estimator: name`. A name is given once."""

    def add(estimator: _Class) -> _Class:
        if _ESTIMATORS.get(name, estimator) is not estimator:
            raise ValueError(f"two advantage estimators are called {name!r}")
        _ESTIMATORS[name] = estimator
        return estimator

    return add


@functools.cache
def _import_all() -> None:
    """Import every module of this folder, so that its estimators register themselves."""
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{__package__}.{module.name}")


def list_estimators() -> Sequence[str]:
    """Return the names that :func:`get_estimator` knows, sorted."""
    _import_all()
    return sorted(_ESTIMATORS)


def get_estimator(name: str, options: Mapping[str, Any] | None = None) -> Estimator:
    """Build an estimator by name.

    Args:
        name: as registered.
        options: values of its knobs; those that it does not have are passed over, so that one configuration serves
            all estimators. What is not given keeps the class default.

    Raises:
        ConfigError: no estimator has this name.
    """
    names = list_estimators()
    if name not in _ESTIMATORS:
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names)}"
        raise ConfigError(f"advantage.estimator: {name!r} is unknown: {hint}")
    build: Any = _ESTIMATORS[name]
    knobs = {knob.name for knob in dataclasses.fields(build)}
    return build(**{key: value for key, value in (options or {}).items() if key in knobs})  # type: ignore[no-any-return]
