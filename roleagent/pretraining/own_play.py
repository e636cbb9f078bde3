"""Episodes that the policy in training plays itself, for a demonstrator to take over in (Ross et al. 2011, DAgger).

A policy that only ever saw the demonstrator's states does not know what to do in its own: it overlooks an object, is
refused, and repeats itself to the end. So it plays training games, and the demonstrator goes on from its mistakes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from roleagent.environments.household.demonstrations import OwnTurn
from roleagent.errors import ConfigError
from roleagent.pretraining.corpus import CorpusSettings, Play, is_home, training_task
from roleagent.seeding import derive
from roleagent.types import Task

if TYPE_CHECKING:
    from roleagent.policy.model import Policy

TEMPERATURE = 0.7  # that of training's rollouts: their mistakes are to be met
TURN_TOKENS = 160  # most tokens of a turn


def play(
    policy: Policy, settings: CorpusSettings, seed: int, number: int, count: int, report: Callable[[int, int], None]
) -> list[Play]:
    """Let the policy play `count` training homes or games, each once; episodes end at a turn without an action.

    Args:
        policy: plays at temperature 0.7.
        settings: say which homes and games, how many steps and predicted states.
        seed: the recipe's.
        number: of the stage; names the random streams.
        count: episodes.
        report: called with (finished episodes, all episodes).
    """
    from roleagent.environments.registry import make_environment
    from roleagent.policy.engines.factory import make_engine
    from roleagent.rollout.loop import collect
    from roleagent.rollout.settings import RolloutSettings

    engine = make_engine(policy)
    wanted = dict.fromkeys(training_task(settings, derive(seed, "own", number, index)) for index in range(2 * count))
    chosen = list(wanted)[:count]
    rollout = RolloutSettings(
        horizon=max(settings.horizons),
        max_steps=settings.max_steps,
        max_turn_tokens=TURN_TOKENS,
        max_context=engine.max_context,
        temperature=TEMPERATURE,
        instructions=False,
    )
    done = 0
    found: list[Play] = []
    for home in (True, False):
        tasks = [task for task in chosen if is_home(task) == home]
        if not tasks:
            continue
        name = "household" if home else "alfworld"
        options = {"level": settings.level} if home else {"heldout": "dev", "folder": settings.folder}

        def told(finished: int, _: int, before: int = done) -> None:
            report(before + finished, len(chosen))

        trajectories = collect(
            engine,
            policy.tokenizer,
            lambda name=name, options=options: make_environment(name, **options),  # type: ignore[misc]
            [(Task(task, name, "", "train"), 0) for task in tasks],
            rollout,
            iteration=number,
            policy_version=0,
            seed=seed,
            purpose="own play",
            on_progress=told,
        )
        done += len(tasks)
        for trajectory in trajectories:
            turns: list[OwnTurn] = []
            for step in trajectory.steps:
                if step.malformed:
                    break
                action = " ".join(step.action.split()).lower() if home else step.action.strip()
                turns.append(OwnTurn(step.reasoning, action, step.predictions[0] if step.predictions else ""))
            found.append(Play(trajectory.task.task_id, tuple(turns)))
    return found


def save(path: Path, plays: Sequence[Play]) -> None:
    """Write plays, a JSON line each, in one atomic step."""
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        for item in plays:
            file.write(json.dumps([item.task_id, item.turns]) + "\n")
    new.replace(path)


def load(path: Path) -> list[Play]:
    """Read what :func:`save` wrote.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        with path.open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return [Play(str(task), tuple(OwnTurn(*map(str, turn)) for turn in turns)) for task, turns in rows]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: remove it, and the same command makes it again") from error
