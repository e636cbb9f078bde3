"""Demonstrations in real games: the household's demonstrator plays them, in the game's own language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roleagent.environments.alfworld.games import open_games, split_of
from roleagent.environments.alfworld.records import TASK_TYPES, RealGame
from roleagent.environments.household.demonstrations import Demonstration, DemonstrationStep, OwnTurn, play
from roleagent.types import Task


def demonstrate(
    task_id: str,
    seed: int = 0,
    habits: Mapping[str, float] | None = None,
    max_steps: int = 50,
    slips: float = 0.0,
    folder: str = "",
    oversights: float = 0.0,
    own: Sequence[OwnTurn] = (),
    horizon: int = 1,
) -> Demonstration:
    """Return what the demonstrator does in a real game.

    Args:
        task_id: `<split>/<task>/<trial>`; for pretraining one of the split "train".
        seed: chooses mistakes and slips.
        habits, slips, oversights, horizon: see :func:`roleagent.environments.household.demonstrations.demonstrate`.
        own: see there; turns in the older language are not followed.
        max_steps: step limit; ALFWorld's is 50.
        folder: where the games are; empty for the store in the home folder, else `$ALFWORLD_DATA`.

    Raises:
        ConfigError: the task id or a failure type is unknown, or there are no games on this machine.
    """
    split, game = split_of(task_id)
    real = open_games(split, folder).load(game)
    side = "train" if split == "train" else "heldout"
    task = Task(task_id, "alfworld", TASK_TYPES[real.game.goal.task_type], side)  # type: ignore[arg-type]
    own = own if real.language.native else ()
    found = play(real.game, task, seed, habits or {}, max_steps, slips, oversights, own, horizon)
    return found if real.language.native else _translated(found, real)


def _translated(found: Demonstration, real: RealGame) -> Demonstration:
    language, game = real.language, real.game
    steps: list[DemonstrationStep] = []

    def outward(text: str) -> str:
        place = game.receptacle_index.get(text.removeprefix("You arrive at ").partition(".")[0])
        location = "" if place is None else f"loc {real.locations - game.receptacles[place].location}"
        return language.outward(text, location)

    for step in found.steps:
        steps.append(
            step._replace(
                state=steps[-1].next_state if steps else step.state,
                action=language.listed((step.action,))[0] if step.action != "help" else step.action,
                next_state=outward(step.next_state),
                predictions=tuple(map(outward, step.predictions)),
            )
        )
    return Demonstration(found.task, found.goal, tuple(steps), found.success, found.label)
