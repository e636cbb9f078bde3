"""The schedule, the corpus and a resumed pretraining."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from roleagent.environments.alfworld.games import training_games
from roleagent.errors import ConfigError, PolicyError
from roleagent.policy.model import load_policy
from roleagent.policy.turns import parse_turn
from roleagent.pretraining.corpus import CorpusSettings, Encoder, agent_example, demonstration, environment_example
from roleagent.pretraining.recipe import alfworld, foresight, quickstart
from roleagent.pretraining.train import PretrainSettings, Stage, batches, learning_rate_factor, pretrain
from tests.differential.games import DATA

CORPUS = CorpusSettings(environment_share=0.3)


def tiny(**changes: object) -> PretrainSettings:
    settings = PretrainSettings(
        stages=(Stage(CORPUS, 3), Stage(replace(CORPUS, decision_weight=4.0), 3, begin=0.5, end=0.0)),
        batch_tokens=1600,
        tokenizer_texts=60,
        vocabulary=700,
        width=16,
        layers=1,
        heads=2,
        kv_heads=1,
        intermediate=16,
    )
    return replace(settings, **changes)  # type: ignore[arg-type]


def test_learning_rate_by_hand() -> None:
    settings = tiny(stages=(Stage(CORPUS, 10), Stage(CORPUS, 10, begin=0.5, end=0.0)), warmup_steps=4)
    factors = [learning_rate_factor(step, settings) for step in (0, 3, 9, 10, 15, 19)]
    assert factors == pytest.approx([0.25, 1.0, 1.0, 0.5, 0.25, 0.05])


def test_only_the_last_stage_has_habits_and_it_starts_where_the_rates_are_small() -> None:
    stages = quickstart().stages
    assert [bool(stage.corpus.habits) for stage in stages] == [False, False, False, True]
    assert [stage.begin for stage in stages] == [1.0, 0.7, 0.25, 0.1]
    assert quickstart().steps == sum(stage.steps for stage in stages)
    assert learning_rate_factor(quickstart().steps - 1, quickstart()) < 0.001


def test_the_recipe_for_alfworld_plays_training_games_and_large_homes() -> None:
    stages = alfworld().stages
    assert stages[:3] == quickstart().stages[:3], "the same beginning"
    assert [stage.own_plays > 0 for stage in stages] == [bool(stage.corpus.own_share) for stage in stages]
    assert [bool(stage.own_plays) for stage in stages] == [False, False, False, False, True]
    corpus = replace(stages[-1].corpus, folder=str(DATA))
    assert corpus.habits is None
    demos = [demonstration(corpus, 0, index, failed=index % 2 > 0) for index in range(120)]
    homes = [demo for demo in demos if demo.task.task_id.startswith("household-large-pretrain-")]
    games = [demo.task.task_id for demo in demos if demo not in homes]
    assert set(games) <= set(training_games(str(DATA)))
    assert len(set(games)) > 60
    assert 0.25 < len(homes) / len(demos) < 0.55
    assert all(demo.label is not None for demo in demos[1::2])
    assert len({demo.task.task_type for demo in demos}) == 12, "each kind of task by both names"


def test_how_many_words_are_the_decision(quickstart_encoder: Encoder) -> None:
    demo = demonstration(replace(CORPUS, slips=0.0), 0, 3)
    few, many = (
        agent_example(demo, quickstart_encoder, replace(CORPUS, decision_weight=4.0, decision_tokens=tokens))
        for tokens in (3, 500)
    )
    assert few.ids == many.ids
    assert few.weights.count(4.0) == 3 * len(demo.steps)
    # A decision is never longer than what is said and done: predictions and observations keep their weights.
    assert [a for a, b in zip(few.weights, many.weights, strict=True) if a != b] == [1.0] * (
        many.weights.count(4.0) - few.weights.count(4.0)
    )


def test_an_alfworld_example_is_the_conversation_of_a_rollout(quickstart_encoder: Encoder) -> None:
    corpus = replace(alfworld().stages[-1].corpus, slips=0.0, generated_share=0.0, folder=str(DATA))
    demo = demonstration(corpus, 0, 3)
    text = quickstart_encoder.tokenizer.decode(agent_example(demo, quickstart_encoder, corpus).ids)
    assert demo.success
    position = text.index(demo.goal)
    for step in demo.steps:
        # In this order: what is seen, why, what is done.
        for part in (step.state, step.reasoning, step.action):
            position = text.index(part, position) + len(part)


def test_about_half_of_the_episodes_with_habits_fail_in_every_task_type() -> None:
    won: dict[str, list[bool]] = {}
    for index in range(600):
        demo = demonstration(replace(quickstart().stages[-1].corpus, slips=0.0), 0, index)
        won.setdefault(demo.task.task_type, []).append(demo.success)
    assert len(won) == 6
    assert all(0.15 < sum(results) / len(results) < 0.85 for results in won.values())
    everything = [success for results in won.values() for success in results]
    assert 0.3 < sum(everything) / len(everything) < 0.6


def test_weights_of_an_agent_example(quickstart_encoder: Encoder) -> None:
    settings = replace(CORPUS, decision_weight=4.0, prediction_weight=0.25, observation_weight=0.125, slips=0.5)
    demo = demonstration(settings, 0, 5)
    assert any(step.slip for step in demo.steps)
    example = agent_example(demo, quickstart_encoder, settings)
    assert len(example.ids) == len(example.weights)
    assert set(example.weights) == {0.0, 0.125, 0.25, 1.0, 4.0}
    assert example.weights.count(4.0) == 3 * sum(not step.slip for step in demo.steps)


def test_each_demonstration_foresees_one_of_the_recipes_numbers_of_states(quickstart_encoder: Encoder) -> None:
    corpus = foresight().stages[0].corpus
    assert corpus == replace(quickstart().stages[-1].corpus, horizons=(1, 2, 4, 4), prediction_weight=0.5)
    longest = [max(len(step.predictions) for step in demonstration(corpus, 0, index).steps) for index in range(90)]
    assert set(longest) == {1, 2, 4}
    assert all(longest.count(number) > 10 for number in (1, 2, 4))
    assert longest.count(4) > 30
    demo = demonstration(corpus, 0, longest.index(4))
    example = agent_example(demo, quickstart_encoder, corpus)
    turns = quickstart_encoder.tokenizer.decode(example.ids).split("<think>")[1:]
    for turn, step in zip(turns, demo.steps, strict=True):
        assert parse_turn(f"<think>{turn}", len(step.predictions)).predictions == step.predictions
    # Nothing says how many are wanted: after a prediction the end of the turn is given, not learned.
    end = quickstart_encoder.tokenizer.eot_id
    ends = [weight for token, weight in zip(example.ids, example.weights, strict=True) if token == end]
    assert ends == [0.0] * (len(demo.steps) - 1)
    alone = agent_example(demonstration(CORPUS, 0, 3), quickstart_encoder, CORPUS)
    assert CORPUS.observation_weight in [w for t, w in zip(alone.ids, alone.weights, strict=True) if t == end]


def test_a_recipe_goes_on_from_another_policy(tmp_path: Path) -> None:
    settings = replace(foresight(), batch_tokens=2500)
    pretrain(settings, tmp_path, lambda _: None, limit=1)
    base, after = load_policy("roleagent:quickstart", device="cpu"), load_policy(str(tmp_path / "policy"), device="cpu")
    assert after.max_context == 4096
    assert after.tokenizer.hf.get_vocab() == base.tokenizer.hf.get_vocab()
    apart = 0.0
    for (name, one), two in zip(base.model.named_parameters(), after.model.parameters(), strict=True):
        assert one.shape == two.shape, name
        apart = max(apart, float((one - two).detach().abs().max()))
    assert 0 < apart < 1e-2, "one step of the warm-up"
    rows: list[dict[str, float]] = []
    pretrain(settings, tmp_path, rows.append, limit=2)
    assert rows[-1]["step"] == 2
    with pytest.raises(ConfigError, match="another recipe"):
        pretrain(replace(settings, base=""), tmp_path, lambda _: None)
    with pytest.raises(PolicyError, match="no-such"):
        pretrain(replace(settings, base="./no-such"), tmp_path / "other", lambda _: None)


def test_an_environment_example_learns_the_answer_alone(quickstart_encoder: Encoder) -> None:
    demo = demonstration(CORPUS, 0, 1, failed=True)
    example = environment_example(demo, quickstart_encoder.tokenizer)
    learned = [token for token, weight in zip(example.ids, example.weights, strict=True) if weight]
    assert demo.label is not None
    text = quickstart_encoder.tokenizer.decode(learned)
    assert text.startswith('{"failure_type": "' + demo.label.failure_type)
    assert learned[-1] == quickstart_encoder.tokenizer.eot_id


def test_batches_hold_every_example_once(quickstart_encoder: Encoder) -> None:
    items = [(k, agent_example(demonstration(CORPUS, 0, k), quickstart_encoder, CORPUS)) for k in range(16)]
    stream = batches(iter(items), 4096, window=16)
    seen, after = [], -1
    while after < 0:
        after, batch = next(stream)
        assert len(batch) * max(len(item.ids) for item in batch) <= 4096
        seen += [tuple(item.ids) for item in batch]
    assert after == 16
    assert sorted(seen) == sorted(tuple(item.ids) for _, item in items)


def test_a_stopped_pretraining_goes_on_with_the_same_recipe_only(tmp_path: Path) -> None:
    rows: list[dict[str, float]] = []
    pretrain(tiny(), tmp_path, rows.append, limit=2)
    assert rows[-1]["step"] == 2
    policy = pretrain(tiny(), tmp_path, rows.append)
    assert rows[-1]["step"] == 6
    assert policy.tokenizer.vocab_size <= 700
    assert (tmp_path / "policy" / "model.safetensors").is_file()
    with pytest.raises(ConfigError, match="another recipe"):
        pretrain(tiny(seed=1), tmp_path, rows.append)
