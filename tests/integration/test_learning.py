"""Every estimator learns: from chance to nearly always right, with the real rollouts, scoring, recipe and update.

The environment is a two-step bandit in words (`tests.support.doors`); the policy begins as a small Llama that has
seen well-formed turns with random actions. A sign error, advantages given to the wrong episode, a loss on the wrong
tokens or weights that do not reach the engine each make this fail.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch

from roleagent.config.load import parse_config
from roleagent.config.models import TrainConfig
from roleagent.learning.advantages.base import list_estimators
from roleagent.learning.learner import Learner
from roleagent.learning.packing import join_values, to_sequences, value_sequences
from roleagent.learning.scoring import Array, score_batch
from roleagent.loop.sampling import play_rounds, trained
from roleagent.policy.engines.base import Engine
from roleagent.policy.engines.factory import make_engine
from roleagent.policy.model import Policy
from roleagent.rollout.loop import collect
from roleagent.rollout.settings import settings_from_config
from roleagent.types import DrawnTask, Task, Trajectory
from tests.support.doors import CHANCE, MAX_STEPS, Doors, random_policy

ITERATIONS = 25  # at most; they need about 15
GROUP = 16
TASKS = 4

#: What a recipe says for large models and long runs, set for a small one and a short run.
SMALL: dict[str, dict[str, dict[str, object]]] = {
    "dapo": {"learner": {"minibatches": 1}},
    "gspo": {"learner": {"clip_low": 0.02, "clip_high": 0.03, "learning_rate": 7e-4}},
    "ppo": {"learner": {"value_learning_rate": 0.05, "value_clip": 1.0, "minibatches": 1}},
}
#: Their advantage and their loss are those of another one that is tested.
SAME = {"role_agent_without_aiw"}


@pytest.fixture(scope="module")
def beginner() -> Policy:
    torch.set_num_threads(1)
    return random_policy()


def configuration(estimator: str, context: str) -> TrainConfig:
    small = SMALL.get(estimator, {})
    return parse_config(
        {
            "environment": {"name": "doors", "max_steps": MAX_STEPS},
            "policy": {"max_context": 128, "instructions": False},
            "rollout": {"tasks_per_iteration": TASKS, "group_size": GROUP, "max_turn_tokens": 24, "context": context},
            "advantage": {"estimator": estimator},
            "learner": {"learning_rate": 2e-3, "kl_coefficient": 0.0, **small.get("learner", {})},
        }
    )


def values(learner: Learner, config: TrainConfig, trajectories: list[Trajectory]) -> dict[str, Array] | None:
    if not config.learner.value_coefficient:
        return None
    sequences = value_sequences(trajectories)
    return join_values(trajectories, sequences, learner.values(sequences))


def play(
    engine: Engine, policy: Policy, config: TrainConfig, tasks: list[tuple[Task, int]], iteration: int
) -> list[Trajectory]:
    """Play a training batch; iteration 0 is an evaluation, with its own temperature, as in the loop."""
    heat = config.rollout.temperature if iteration else config.evaluation.temperature
    return collect(
        engine,
        policy.tokenizer,
        Doors,
        tasks,
        settings_from_config(config, temperature=heat, max_context=engine.max_context),
        iteration=iteration,
        policy_version=max(0, iteration - 1),
        seed=config.seed,
        purpose="rollout" if iteration else "evaluation",
    )


def success(trajectories: list[Trajectory]) -> float:
    return sum(trajectory.success for trajectory in trajectories) / len(trajectories)


@pytest.mark.parametrize(
    ("estimator", "context"),
    [*((name, "history") for name in list_estimators() if name not in SAME), ("role_agent", "step"), ("ppo", "step")],
)
def test_it_learns_from_chance_to_nearly_always(beginner: Policy, estimator: str, context: str) -> None:
    config = configuration(estimator, context)
    policy = Policy(copy.deepcopy(beginner.model), beginner.tokenizer, beginner.spec, beginner.max_context)
    engine = make_engine(policy).snapshot()
    learner = Learner(policy.model, None, config.learner_settings, seed=config.seed)
    drawn = [DrawnTask(task, "uniform", 1 / 8) for task in Doors().tasks("train")]
    heldout = [(task, sample) for task in Doors().tasks("heldout") for sample in range(25)]

    before = success(play(engine, policy, config, heldout, 0))
    curve = []
    for n in range(1, ITERATIONS + 1):

        def groups(items: Sequence[DrawnTask], n: int = n) -> list[Trajectory]:
            return play(engine, policy, config, [(item.task, sample) for item in items for sample in range(GROUP)], n)

        trajectories = play_rounds(drawn, groups, config)
        curve.append(success(trajectories))
        if min(curve[-2:]) > 0.95:
            break
        scored = score_batch(trajectories, config, values(learner, config, trajectories))
        sequences = to_sequences(
            trained(trajectories, config),
            scored.step_advantages,
            values=scored.values,
            value_targets=scored.value_targets,
            overlong_mask=config.learner.overlong_mask,
        )
        learner.update(sequences, temperature=1.0, iteration=n)
        engine.load_weights(policy.model)
    after = success(play(engine, policy, config, heldout, 0))

    assert before < 2 * CHANCE, f"it is to begin at about chance, {CHANCE:.2f}, not at {before:.2f}"
    assert 0 < curve[0] < 2 * CHANCE
    assert after >= 0.9, f"held-out success {before:.2f} -> {after:.2f}; on the way {[round(x, 2) for x in curve]}"
