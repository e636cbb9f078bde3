"""Demonstrations: what the expert, or a demonstrator with habits, does in a game. A pure function of its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from roleagent.environments.household.engine import apply, is_won
from roleagent.environments.household.expert import Expert, Move, kind_of, plan
from roleagent.environments.household.failures import MISTAKES, Label, Occasion, Script, task_phrase
from roleagent.environments.household.game import Game, State
from roleagent.environments.household.generator import Draws, generate, parse_task_id, task_type_of
from roleagent.environments.household.words import NOTHING_HAPPENS, room_text
from roleagent.errors import ConfigError
from roleagent.seeding import derive
from roleagent.types import Task

#: Failure type -> probability at its first occasion. About two episodes of five fail at level small.
DEFAULT_HABITS: Mapping[str, float] = {
    "repeated exploration": 0.06,
    "unopened receptacle": 0.15,
    "wrong object": 0.06,
    "missing treatment": 0.12,
    "wrong treatment": 0.2,
    "premature placement": 0.08,
    "wrong receptacle": 0.08,
    "closed target": 0.3,
    "lamp not used": 0.25,
    "second object forgotten": 0.25,
    "invalid action": 0.05,
}

#: Probability that a slip which was refused is made again: a policy falls into such loops and has to leave them.
REPEATED_SLIPS = 0.35
#: The demonstrator takes over at one of so many first mistakes of a policy: a loop of refusals has many alike.
TAKEOVERS = 6
_DOORS = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})  # what is closed in most rooms


class DemonstrationStep(NamedTuple):
    """Step t: s_t, why, a_t, s_{t+1}, whether the action was possible, and whether it was a slip."""

    state: str
    reasoning: str
    action: str
    next_state: str
    valid: bool
    slip: bool = False  #: a random action in place of the intended one: not to be imitated, but to recover from
    predictions: tuple[str, ...] = ()  #: what the demonstrator expected at t of s_{t+1}, s_{t+2}, ...: see `foresee`
    own: bool = False  #: a policy's turn, which the demonstrator only followed


class OwnTurn(NamedTuple):
    """A turn that a policy played, before a demonstrator took over."""

    reasoning: str
    action: str
    prediction: str


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode. `label` is there iff a scripted mistake made it fail."""

    task: Task
    goal: str
    steps: tuple[DemonstrationStep, ...]
    success: bool
    label: Label | None


def demonstrate(
    task_id: str,
    seed: int = 0,
    habits: Mapping[str, float] | None = None,
    max_steps: int = 20,
    slips: float = 0.0,
    oversights: float = 0.0,
    own: Sequence[OwnTurn] = (),
    horizon: int = 1,
) -> Demonstration:
    """Return what the demonstrator does in a game of any id space, up to `max_steps` steps.

    Without habits it is the pure expert. `habits` maps a failure type to the probability that the demonstrator makes
    this mistake at its first occasion of the episode; there is at most one mistake an episode. `slips` is the
    probability that a step's action is replaced by a random harmless one, from which the demonstrator recovers: a
    policy that imitates it learns to go on after a mistake of its own (Laskey et al. 2017, noise injection).
    `oversights` is the probability that what it could take is overlooked: it searches on, in the end from the
    beginning. `own` are the turns that a policy played there: the demonstrator follows them up to one of the first
    mistakes, which the seed chooses, and does what is right there. `horizon` is how many states it foresees at each
    step.

    Raises:
        ConfigError: the task id or a failure type is unknown.
    """
    level, space, index = parse_task_id(task_id)
    task = Task(task_id, "household", task_type_of(level, space, index), "heldout" if space == "heldout" else "train")
    return play(generate(task_id), task, seed, habits or {}, max_steps, slips, oversights, own, horizon)


def play(
    game: Game,
    task: Task,
    seed: int,
    habits: Mapping[str, float],
    max_steps: int,
    slips: float = 0.0,
    oversights: float = 0.0,
    own: Sequence[OwnTurn] = (),
    horizon: int = 1,
) -> Demonstration:
    """Return what the demonstrator does in a given game; see :func:`demonstrate`."""
    for name in habits:
        if name not in MISTAKES:
            raise ConfigError(f"unknown failure type {name!r} in habits: choose among {', '.join(MISTAKES)}")
    waiting = [name for name in MISTAKES if habits.get(name, 0.0) > 0.0]
    draws = Draws("demonstration", seed, task.task_id) if waiting else None
    accidents = Draws("slips", seed, task.task_id) if slips > 0 else None
    eyes = Draws("oversights", seed, task.task_id) if oversights > 0 else None
    state, text = game.start, room_text(game)
    expert = Expert(game.goal_text, text)
    script: Script | None = None
    mistaken: tuple[str, str] | None = None  # the slip of the step before
    begun = critical = 0
    steps: list[DemonstrationStep] = []
    success = False
    for turn in own[: takeover(game, own, seed)]:
        move = expert.move()
        state, answer, valid = apply(game, state, turn.action)
        expert.observe(turn.action, answer)
        differs = (turn.reasoning, turn.action) != (move.reasoning, move.action)
        steps.append(
            DemonstrationStep(text, turn.reasoning, turn.action, answer, valid, differs, (turn.prediction,), True)
        )
        text = answer
    while len(steps) < max_steps and not success:
        if script is None:
            move = expert.move()
            overlooked = move.kind == "take" and eyes is not None and eyes.uniform() < oversights
            if overlooked:
                expert.overlook()
                move = expert.move()
            reasoning, action = move.reasoning, move.action
            if draws is not None:
                occasion = Occasion(game, expert, move, draws)
                for name in tuple(waiting):
                    found = MISTAKES[name](occasion)
                    if found is not None:
                        waiting.remove(name)
                        if draws.uniform() < habits[name]:
                            script = found
                            begun = len(steps) + 1
                            break
        if script is not None:
            reasoning, action, is_mistake = next(script.moves)
            if is_mistake:
                critical = len(steps) + 1
        slip = script is None and overlooked
        if script is None and accidents is not None and not slip:
            refused = mistaken if text == NOTHING_HAPPENS else None
            slip = accidents.uniform() < (REPEATED_SLIPS if refused else slips)
            mistaken = (refused or _slip(game, expert, move, accidents)) if slip else None
            if mistaken:
                reasoning, action = mistaken
        predictions = foresee(game, state, expert, action, horizon)
        state, answer, valid = apply(game, state, action)
        expert.observe(action, answer)
        steps.append(DemonstrationStep(text, reasoning, action, answer, valid, slip, predictions))
        text = answer
        success = is_won(game, state)
    label = None
    if script is not None and not success:
        label = Label(
            failure_type=script.failure_type,
            root_cause=script.root_cause,
            critical_step=critical or begun,
            lesson=script.lesson,
            retrieval_query=f"{script.failure_type}: {task_phrase(expert)}",
        )
    return Demonstration(task, game.goal_text, tuple(steps), success, label)


def takeover(game: Game, own: Sequence[OwnTurn], seed: int) -> int:
    """Return how many of a policy's turns are followed: all before one of its first mistakes, which the seed chooses.

    So the expert is asked in states that the learner reaches, and just where it went wrong (Ross et al. 2011, DAgger).
    A mistake is an action that is refused, or another one than the expert's where that is not a search: in which order
    a room is searched matters little. A play without mistakes has nothing to be shown: 0.
    """
    state, text = game.start, room_text(game)
    expert = Expert(game.goal_text, text)
    mistakes: list[int] = []
    for number, turn in enumerate(own):
        if len(mistakes) == TAKEOVERS or is_won(game, state):
            break
        move = expert.move()
        state, answer, valid = apply(game, state, turn.action)
        if turn.action != move.action and not (valid and move.kind.startswith("search")):
            mistakes.append(number)
        expert.observe(turn.action, answer)
    if not mistakes:
        return 0
    return mistakes[derive(seed, "takeover") % len(mistakes)]


def expectation(expert: Expert, action: str, answer: str) -> str:
    """Return what the demonstrator can expect of an action.

    Where it has not looked it expects what the kind of the place suggests: a door is closed, and there is nothing to
    see. It does not guess objects: a prediction that knew the answer would teach a policy to read its own predictions
    in place of what it sees, and one that guesses would put objects into the conversation that are not there.
    """
    if action.startswith("go to "):
        place = action.removeprefix("go to ")
        if place in expert.memory.searched and answer != NOTHING_HAPPENS:
            return answer
        if kind_of(place) in _DOORS and place not in expert.memory.searched:
            return f"You arrive at {place}. The {place} is closed."
        return f"You arrive at {place}. On the {place}, you see nothing."
    if action.startswith("open "):
        place = action.removeprefix("open ")
        if place not in expert.memory.searched:
            return f"You open the {place}. The {place} is open. In it, you see nothing."
    elif answer == NOTHING_HAPPENS and action.startswith("take "):
        thing, _, where = action.removeprefix("take ").partition(" from ")
        return f"You pick up the {thing} from the {where}."
    return answer


def foresee(game: Game, state: State, expert: Expert, action: str, horizon: int) -> tuple[str, ...]:
    """Return what the demonstrator expects of an action and of the moves that it would make behind it.

    It imagines: its twin takes every expectation for the answer and chooses the next move from that. The game answers
    the imagined moves, but :func:`expectation` passes on only what the demonstrator knows now, so nothing that the
    steps in between will show is in a prediction. There are fewer than `horizon` where the game is won by them.
    """
    imagined = expert
    found: list[str] = []
    while True:
        state, answer, _ = apply(game, state, action)
        found.append(expectation(expert, action, answer))
        if len(found) == horizon or is_won(game, state):
            return tuple(found)
        imagined = expert.twin() if imagined is expert else imagined
        imagined.observe(action, found[-1])
        action = imagined.move().action


def _slip(game: Game, expert: Expert, move: Move, draws: Draws) -> tuple[str, str]:
    """Return (reasoning, action) of a mistake that undoes nothing and from which the expert goes on.

    Half of the slips are those that an imitator makes by itself: to see the object where it is not, and to overlook
    it. Their reasoning is the mistaken one, for that is what the imitator will find in its own past.
    """
    memory, wish = expert.memory, expert.wish
    second = "second " if move.reasoning.startswith("find second ") else ""
    if draws.uniform() < 0.5:
        if move.kind.startswith("search") and memory.at:
            thing = f"{wish.object} {draws.pick((1, 1, 1, 2, 2, 3))}"
            return f"find {second}{thing} in {memory.at}", f"take {thing} from {memory.at}"
        ahead = [place for place in memory.order if place not in memory.searched]
        if move.kind == "take" and ahead:
            return plan(f"find {second}{wish.object}", ahead), f"go to {ahead[0]}"
    if draws.uniform() < 0.5:
        place = draws.pick(game.receptacles).name
        if memory.held:
            return f"place {memory.held} in {place}", f"go to {place}"
        others = [name for name in memory.order if name != place and draws.uniform() < 0.5]
        return plan(f"find {second}{wish.object}", [place, *others]), f"go to {place}"
    if draws.uniform() < 0.6:
        kind = draws.pick(sorted(game.can_contain)).lower()
        return move.reasoning, f"go to {kind} {draws.pick((1, 1, 2, 3))}"
    thing = f"{draws.pick(game.things).kind.lower()} {draws.pick((2, 3, 4))}"
    return move.reasoning, f"take {thing} from {draws.pick(game.receptacles).name}"
