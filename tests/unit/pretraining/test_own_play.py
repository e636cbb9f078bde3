"""Demonstrations that begin with a policy's own turns, and the stage that makes the policy play."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roleagent.environments.household.demonstrations import TAKEOVERS, OwnTurn, demonstrate, takeover
from roleagent.environments.household.generator import generate, task_id
from roleagent.errors import ConfigError
from roleagent.policy.model import load_policy
from roleagent.pretraining.corpus import CorpusSettings, Encoder, Play, agent_example, demonstration
from roleagent.pretraining.own_play import load, play, save
from roleagent.pretraining.train import PretrainSettings, Stage, pretrain

HOME = task_id("small", "pretrain", 5)
CORPUS = CorpusSettings(slips=0.0, environment_share=0.0, own_share=1.0)


def expert_turns(home: str = HOME) -> list[OwnTurn]:
    return [OwnTurn(step.reasoning, step.action, "I see.") for step in demonstrate(home).steps]


def test_nothing_is_taken_over_from_a_play_without_mistakes() -> None:
    assert takeover(generate(HOME), expert_turns(), 0) == 0
    assert not any(step.own for step in demonstrate(HOME, own=expert_turns()).steps)


def test_the_demonstrator_takes_over_at_one_of_the_first_mistakes() -> None:
    wrong = OwnTurn("find it", "take lamp 9 from shelf 9", "You pick up the lamp 9 from the shelf 9.")
    own = [*expert_turns()[:2], *[wrong] * 9]
    cuts = {takeover(generate(HOME), own, seed) for seed in range(60)}
    assert cuts == set(range(2, 2 + TAKEOVERS))
    demo = demonstrate(HOME, seed=next(s for s in range(60) if takeover(generate(HOME), own, s) == 3), own=own)
    assert [step.own for step in demo.steps[:5]] == [True, True, True, False, False]
    # The first two turns are the expert's and may be imitated; the mistake may not. In its place stands the right one.
    assert [step.slip for step in demo.steps[:3]] == [False, False, True]
    assert [step.action for step in demo.steps[3:]] == [step.action for step in demonstrate(HOME).steps[2:]]
    assert demo.success


def test_another_order_of_search_is_no_mistake_and_an_overlooked_object_is_one() -> None:
    game = generate(HOME)
    turns = expert_turns()
    searches = [turn for turn in turns if turn.action.startswith("go to ")]
    other = next(place.name for place in game.receptacles if all(place.name not in turn.action for turn in turns))
    away = OwnTurn("", f"go to {other}", "")
    assert takeover(game, [away], 0) == 0, "the object was not in sight: nothing is lost"
    take = next(number for number, turn in enumerate(turns) if turn.action.startswith("take "))
    assert searches
    assert takeover(game, [*turns[:take], away], 0) == take


def test_what_was_taken_by_mistake_is_put_back_where_it_was() -> None:
    game = generate(HOME)
    thing, place = next(
        (game.things[index], game.receptacles[number])
        for number, contents in enumerate(game.start.contents)
        for index in contents
        if not game.receptacles[number].openable and game.things[index].kind != game.goal.object
    )
    wrong = OwnTurn("", "dance", "")
    own = [OwnTurn("", f"go to {place.name}", ""), OwnTurn("", f"take {thing.name} from {place.name}", ""), wrong]
    demo = demonstrate(HOME, own=own)
    assert [step.own for step in demo.steps[:3]] == [True, True, False]
    assert demo.steps[2].action == f"move {thing.name} to {place.name}"
    assert demo.steps[2].valid
    assert demo.success


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 400), st.integers(0, 10_000), st.data())
def test_the_demonstrator_wins_from_whatever_a_policy_did(index: int, seed: int, data: st.DataObject) -> None:
    home = task_id("small", "pretrain", index)
    game = generate(home)
    places, things = [place.name for place in game.receptacles], [thing.name for thing in game.things]
    command = st.one_of(
        st.sampled_from(["look", "inventory", "help", "dance"]),
        st.builds("{} {}".format, st.sampled_from(["go to", "open", "close"]), st.sampled_from(places)),
        st.builds("take {} from {}".format, st.sampled_from(things), st.sampled_from(places)),
        st.builds("move {} to {}".format, st.sampled_from(things), st.sampled_from(places)),
        st.builds("clean {} with {}".format, st.sampled_from(things), st.sampled_from(places)),
    )
    own = [OwnTurn("", action, "") for action in data.draw(st.lists(command, max_size=12))]
    demo = demonstrate(home, seed, max_steps=60, own=own)
    assert demo.success, [step.action for step in demo.steps]
    # The same play is followed to the same place.
    assert demo == demonstrate(home, seed, max_steps=60, own=own)


def test_weights_of_own_turns(quickstart_encoder: Encoder) -> None:
    wrong = OwnTurn("find it", "take lamp 9 from shelf 9", "You pick up the lamp 9 from the shelf 9.")
    own = [*expert_turns()[:2], wrong, wrong]
    demo = demonstrate(HOME, seed=next(s for s in range(60) if takeover(generate(HOME), own, s) == 3), own=own)
    assert [step.own for step in demo.steps[:4]] == [True, True, True, False]
    example = agent_example(demo, quickstart_encoder, replace(CORPUS, observation_weight=0.0, prediction_weight=0.25))
    text = quickstart_encoder.tokenizer
    learned = [text.decode([token]) for token, weight in zip(example.ids, example.weights, strict=True) if weight == 1]
    given_ = [text.decode([token]) for token, weight in zip(example.ids, example.weights, strict=True) if weight == 0]
    assert demo.steps[0].action in "".join(learned)
    assert wrong.action not in "".join(learned)
    assert wrong.action in "".join(given_)
    assert "I see." in "".join(given_), "the prediction of a turn that is imitated is not"
    assert 0.25 in example.weights, "the expert's predictions are"


def test_the_corpus_takes_its_share_of_plays() -> None:
    look, wrong = OwnTurn("look about", "look", ""), OwnTurn("find it", "take lamp 9 from shelf 9", "")
    plays = [Play(task_id("small", "pretrain", index), (look, wrong)) for index in range(5)]
    some = replace(CORPUS, own_share=0.5)
    begun = [demonstration(some, 0, index, plays=plays).steps[0].own for index in range(200)]
    assert 70 < sum(begun) < 130
    assert not any(demonstration(some, 0, index).steps[0].own for index in range(20))
    assert all(demonstration(CORPUS, 0, index, plays=plays).steps[0].own for index in range(20))
    failed = demonstration(CORPUS, 0, 3, failed=True, plays=plays)
    assert failed.label is not None
    assert not any(step.own for step in failed.steps)


def test_a_policy_plays_each_home_once_and_the_same_again(tmp_path: Path) -> None:
    policy = load_policy("roleagent:quickstart", device="cpu")
    told: list[tuple[int, int]] = []
    corpus = CorpusSettings(max_steps=6)
    plays = play(policy, corpus, 0, 3, 4, lambda done, count: told.append((done, count)))
    assert len({item.task_id for item in plays}) == 4
    assert all(item.task_id.startswith("household-small-pretrain-") for item in plays)
    assert all(1 <= len(item.turns) <= 6 for item in plays)
    assert told[-1] == (4, 4)
    assert plays == play(policy, corpus, 0, 3, 4, lambda *_: None)
    assert plays != play(policy, corpus, 1, 3, 4, lambda *_: None)
    path = tmp_path / "plays.jsonl"
    save(path, plays)
    assert load(path) == plays
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ConfigError, match="damaged: remove it"):
        load(path)


def test_a_resumed_run_finds_its_plays_or_makes_the_same(tmp_path: Path) -> None:
    corpus = CorpusSettings(max_steps=4, own_share=0.5)
    recipe = PretrainSettings(
        stages=(Stage(corpus, 1), Stage(corpus, 2, own_plays=3)),
        batch_tokens=800,
        tokenizer_texts=40,
        vocabulary=600,
        width=16,
        layers=1,
        heads=2,
        kv_heads=1,
        intermediate=16,
    )
    pretrain(recipe, tmp_path / "whole", lambda _: None)
    pretrain(recipe, tmp_path / "parts", lambda _: None, limit=1)
    assert not (tmp_path / "parts" / "own-plays-1.jsonl").exists()
    pretrain(recipe, tmp_path / "parts", lambda _: None, limit=2)
    rows: list[dict[str, float]] = []
    pretrain(recipe, tmp_path / "parts", rows.append)
    assert not any("plays" in row for row in rows), "they were there"
    files = [tmp_path / name / "own-plays-1.jsonl" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(load(files[0])) == 3
    # Plays that the checkpoint was trained on cannot be made again from later weights.
    pretrain(recipe, tmp_path / "lost", lambda _: None, limit=2)
    (tmp_path / "lost" / "own-plays-1.jsonl").unlink()
    with pytest.raises(ConfigError, match="missing"):
        pretrain(recipe, tmp_path / "lost", lambda _: None)
