"""Episodes of the preset `quickstart` for the benchmarks of generation: the packaged policy in the household.

Eight tasks, eight episodes each, side by side, at the preset's temperature and limits; contexts grow to about 1,000
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from roleagent.config import load_config
from roleagent.environments.base import Environment
from roleagent.environments.registry import make_environment
from roleagent.policy.engines.factory import make_engine
from roleagent.policy.model import Policy, load_policy
from roleagent.rollout.loop import collect
from roleagent.rollout.meter import RolloutMeter
from roleagent.rollout.settings import RolloutSettings, settings_from_config
from roleagent.types import Task, Trajectory

EPISODES_A_TASK = 8


@dataclass(frozen=True, slots=True)
class Played:
    """What a rollout gave: tokens that the model wrote, turns, and successes."""

    tokens: int
    turns: int
    successes: int


class Case:
    """The policy, the games and the limits that both sides share."""

    def __init__(self, tasks: int = 8, max_steps: int | None = None) -> None:
        config = load_config("quickstart", [] if max_steps is None else [f"environment.max_steps={max_steps}"])
        self.options = dict(config.environment.options)
        self.policy: Policy = load_policy(config.policy.model, "float32", "cpu")
        self.settings: RolloutSettings = settings_from_config(config, max_context=self.policy.max_context)
        self.tasks: list[Task] = list(self.environment().tasks("train"))[:tasks]
        self.pairs = [(task, sample) for task in self.tasks for sample in range(EPISODES_A_TASK)]
        self._engine = make_engine(self.policy)

    def environment(self) -> Environment:
        """Return an environment of its own."""
        return make_environment("household", **self.options)

    def collect(self, iteration: int, meter: RolloutMeter | None = None) -> list[Trajectory]:
        """Play all episodes with our engine and loop; `iteration` names the random numbers."""
        return collect(
            self._engine,
            self.policy.tokenizer,
            self.environment,
            self.pairs,
            self.settings,
            iteration=iteration,
            policy_version=0,
            seed=0,
            purpose="benchmark",
            meter=meter,
        )

    def ours(self, iteration: int) -> Played:
        """Play all episodes with our engine and count."""
        trajectories = self.collect(iteration)
        steps = [step for trajectory in trajectories for step in trajectory.steps]
        return Played(
            sum(len(step.generated_ids) for step in steps),
            len(steps),
            sum(trajectory.success for trajectory in trajectories),
        )
