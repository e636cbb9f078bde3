"""The supervised corpus: demonstrations in homes or in ALFWorld's games as token sequences, in both roles.

Agent: the demonstrator's turns (reasoning, action, prediction of the next states), in exactly the conversation
that a rollout builds. Environment: the diagnosis of a scripted failure as the record of the method, section 2,
labelled by the engine. Example i depends only on (seed, i), so a run goes on where it stopped, and no example is
kept: homes come from an id space that neither training nor held-out tasks use, games from ALFWorld's split `train`
without those of `heldout: dev`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from roleagent.agent_in_world.prompts import diagnosis_prompt, render_record
from roleagent.environments.alfworld import demonstrations as alfworld
from roleagent.environments.alfworld.games import training_games
from roleagent.environments.household.demonstrations import (
    DEFAULT_HABITS,
    Demonstration,
    DemonstrationStep,
    OwnTurn,
    demonstrate,
)
from roleagent.environments.household.generator import task_id
from roleagent.policy.tokens import PolicyTokenizer
from roleagent.policy.turns import render_turn
from roleagent.rollout.context import first_user_text
from roleagent.seeding import derive, generator

SHORTEST = 5  # steps of a failed episode that is stopped early
TASK_SPACE = 10_000_000  # pretraining homes of one level


@dataclass(frozen=True, slots=True)
class Example:
    """One sequence: token ids and the weight of each in the loss (0: given, not learned)."""

    ids: list[int]
    weights: list[float]


class Encoder:
    """A tokenizer that remembers: the same observations and turns come again and again."""

    def __init__(self, tokenizer: PolicyTokenizer, limit: int = 200_000) -> None:
        self.tokenizer = tokenizer
        self._limit = limit
        self._known: dict[tuple[str, str], list[int]] = {}

    def turn(self, text: str) -> list[int]:
        """Return the ids of a turn's text."""
        return self._remember(("turn", text), lambda: self.tokenizer.encode_text(text))

    def observation(self, text: str) -> list[int]:
        """Return the ids between the model's turn and its next one."""
        return self._remember(("observation", text), lambda: self.tokenizer.next_user(text, ended=False))

    def _remember(self, key: tuple[str, str], encode: Callable[[], list[int]]) -> list[int]:
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self._limit:
                self._known.clear()
            found = self._known[key] = encode()
        return found


@dataclass(frozen=True, slots=True)
class Play:
    """One episode that the policy played."""

    task_id: str
    turns: tuple[OwnTurn, ...]


@dataclass(frozen=True, slots=True)
class CorpusSettings:
    """What the corpus is made of."""

    environment: str = "household"  #: or "alfworld"
    level: str = "small"  #: of the household's homes
    generated_share: float = 0.0  #: share of demonstrations in homes of that level beside those in ALFWorld's games
    folder: str = ""  #: where ALFWorld's games are; empty for the store in the home folder, else `$ALFWORLD_DATA`
    max_steps: int = 20
    horizons: tuple[int, ...] = (1,)  #: each demonstration foresees one of these numbers of states
    habits: Mapping[str, float] | None = None  #: failure type -> probability of that mistake when there is occasion
    habits_from: int = 0  #: the agent's demonstrations before this index are the pure expert's
    environment_share: float = 0.2  #: share of examples in the environment role
    decision_weight: float = 1.0  #: weight of a turn's first words, in which it decides what to do
    decision_tokens: int = 3  #: how many: "find mug in" or "find mug 1": whether the object was seen shows in the third
    observation_weight: float = 0.3  #: weight of the environment's own tokens: they teach the world model
    prediction_weight: float = 0.5  #: weight of predictions: much of what they say cannot be known beforehand
    aftermath_weight: float = 0.3  #: weight of the demonstrator's turns after its mistake
    slips: float = 0.06  #: probability of a random action, which is not imitated, in place of the intended one
    oversights: float = 0.0  #: probability that what could be taken is overlooked; the rest of the search is imitated
    own_share: float = 0.0  #: share of the agent's demonstrations that begin with turns that the policy played itself


def demonstration(
    settings: CorpusSettings, seed: int, index: int, *, failed: bool = False, plays: Sequence[Play] = ()
) -> Demonstration:
    """Return demonstration `index`; with `failed`, the first failed one of a series that begins there.

    What the agent imitates has the habits of the settings. What the environment diagnoses has every kind of failure.
    `plays` are the policy's own, of which `own_share` of the demonstrations take one each.
    """
    horizon = settings.horizons[derive(seed, "horizon", index) % len(settings.horizons)]
    if plays and not failed and generator(seed, "own", index).random() < settings.own_share:
        draw = derive(seed, "own play", index)
        play = plays[draw % len(plays)]
        steps, slips = settings.max_steps, settings.slips
        return _demonstrate(play.task_id, settings, draw, settings.habits, steps, slips, 0.0, horizon, play)
    habits = DEFAULT_HABITS if failed else settings.habits if index >= settings.habits_from else None
    for attempt in range(200):
        draw = derive(seed, "demonstration", index, attempt)
        slips = 0.0 if failed else settings.slips
        steps = settings.max_steps
        if failed and attempt % 2:  # an episode may be stopped early, by another limit or by an error
            steps = min(steps, SHORTEST + draw // TASK_SPACE % max(1, steps - SHORTEST))
        oversights = 0.0 if failed else settings.oversights
        demo = _demonstrate(training_task(settings, draw), settings, draw, habits, steps, slips, oversights, horizon)
        if not failed or demo.label is not None:
            return demo
    raise ValueError("the habits produce no failures to diagnose")


def training_task(settings: CorpusSettings, draw: int) -> str:
    """Return the id of the home or game that a number chooses."""
    generated = settings.environment == "household" or generator(draw, "generated").random() < settings.generated_share
    if generated:
        return task_id(settings.level, "pretrain", draw % TASK_SPACE)
    games = training_games(settings.folder)
    return games[draw % len(games)]


def is_home(task: str) -> bool:
    """Tell generated homes from ALFWorld's games by their ids."""
    return task.startswith("household-")


def _demonstrate(
    task: str,
    settings: CorpusSettings,
    draw: int,
    habits: Mapping[str, float] | None,
    steps: int,
    slips: float,
    oversights: float,
    horizon: int,
    play: Play | None = None,
) -> Demonstration:
    own = play.turns if play else ()
    if is_home(task):
        return demonstrate(task, draw, habits, steps, slips, oversights, own, horizon)
    return alfworld.demonstrate(task, draw, habits, steps, slips, settings.folder, oversights, own, horizon)


def agent_example(demo: Demonstration, encoder: Encoder, settings: CorpusSettings) -> Example:
    """Return a demonstration in the agent role, as one growing conversation.

    With several horizons the end of a turn is not learned: nothing tells the policy how many predictions are wanted,
    and a rollout ends the turn when there are enough.
    """
    ended = settings.observation_weight if len(settings.horizons) == 1 else 0.0
    seen = settings.observation_weight
    ids = list(encoder.tokenizer.opening(None, first_user_text(demo.goal, demo.steps[0].state)))
    weights = [0.0] * len(ids)
    critical = demo.label.critical_step if demo.label else len(demo.steps)
    for t, step in enumerate(demo.steps):
        decision = render_turn(step.reasoning, step.action, [])
        chosen, foreseen = encoder.turn(decision), encoder.turn(_predictions(decision, step))
        weight = 1.0 if t < critical else settings.aftermath_weight
        ids += [*chosen, *foreseen]
        decided = [weight] + [settings.decision_weight * weight] * settings.decision_tokens
        decided = (decided + [weight] * (len(chosen) - len(decided)))[: len(chosen)]
        weights += [0.0] * len(chosen) if step.slip else decided
        weights += [0.0 if step.own else settings.prediction_weight * weight] * len(foreseen)
        if t + 1 < len(demo.steps):
            context = encoder.observation(step.next_state)
            ids += context
            weights += [ended] + [seen] * (len(context) - 1)
    return Example(ids, weights)


def _predictions(decision: str, step: DemonstrationStep) -> str:
    # A tag begins a token of its own, so a turn may be encoded in two parts.
    return render_turn(step.reasoning, step.action, step.predictions).removeprefix(decision)


def environment_example(demo: Demonstration, tokenizer: PolicyTokenizer) -> Example:
    """Return the diagnosis of a failed demonstration in the environment role."""
    if demo.label is None:
        raise ValueError("only failed demonstrations have a diagnosis")
    prompt = diagnosis_prompt(
        demo.goal, [(step.action, step.next_state) for step in demo.steps], instructions=False, max_chars=None
    )
    answer = tokenizer.encode_text(
        render_record(
            failure_type=demo.label.failure_type,
            root_cause=demo.label.root_cause,
            critical_step=demo.label.critical_step,
            lesson=demo.label.lesson,
            retrieval_query=demo.label.retrieval_query,
        )
    )
    opening = tokenizer.opening(None, prompt)
    ids = [*opening, *answer, tokenizer.eot_id]
    return Example(ids, [0.0] * len(opening) + [1.0] * (len(answer) + 1))


def example(index: int, encoder: Encoder, settings: CorpusSettings, seed: int, plays: Sequence[Play] = ()) -> Example:
    """Return example `index` of the corpus."""
    if generator(seed, "role", index).random() < settings.environment_share:
        return environment_example(demonstration(settings, seed, index, failed=True), encoder.tokenizer)
    return agent_example(demonstration(settings, seed, index, plays=plays), encoder, settings)


def examples(
    start: int,
    tokenizer: PolicyTokenizer,
    settings: CorpusSettings,
    seed: int,
    max_length: int,
    plays: Sequence[Play] = (),
) -> Iterator[tuple[int, Example]]:
    """Yield (index, example) from index `start` on, without those that are too long."""
    encoder = Encoder(tokenizer)
    index = start
    while True:
        item = example(index, encoder, settings, seed, plays)
        if len(item.ids) <= max_length:
            yield index, item
        index += 1


def texts(settings: CorpusSettings, seed: int, count: int, render: Callable[[Demonstration], list[str]]) -> list[str]:
    """Return the texts of `count` demonstrations, from which a tokenizer is trained."""
    return [
        text for index in range(count) for text in render(demonstration(settings, seed, index, failed=index % 2 > 0))
    ]


def demonstration_texts(demo: Demonstration) -> list[str]:
    """Return every text of a demonstration in the forms in which a policy meets it."""
    found = [first_user_text(demo.goal, demo.steps[0].state)]
    for step in demo.steps:
        found += [render_turn(step.reasoning, step.action, [step.next_state]), step.next_state]
    if demo.label is not None:
        found.append(
            diagnosis_prompt(
                demo.goal, [(step.action, step.next_state) for step in demo.steps], instructions=False, max_chars=None
            )
        )
        found.append(
            render_record(
                failure_type=demo.label.failure_type,
                root_cause=demo.label.root_cause,
                critical_step=demo.label.critical_step,
                lesson=demo.label.lesson,
                retrieval_query=demo.label.retrieval_query,
            )
        )
    return found
