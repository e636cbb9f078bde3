import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.errors import DataQualityError
from roleagent.learning.packing import (
    generated_tokens,
    join_values,
    micro_batches,
    minibatches,
    rank_share,
    to_sequences,
    used_length,
    value_sequences,
)
from roleagent.types import Step, StopReason, TrainingSequence, Trajectory, ValuePoint
from tests.support.episodes import make_episode, make_step


def step(index: int, context: tuple[int, ...], generated: tuple[int, ...], continues: bool) -> Step:
    logprobs = tuple(-0.1 * token for token in generated)
    return make_step(index, context_ids=context, generated_ids=generated, logprobs=logprobs, continues=continues)


def trajectory(*steps: Step, name: str = "t") -> Trajectory:
    return make_episode(steps, trajectory_id=name)


def sequence(mask: str, name: str = "", first_id: int = 10) -> TrainingSequence:
    """`..xx.x` : dots are context, x are generated; ids count up from `first_id`."""
    flags = tuple(letter == "x" for letter in mask)
    return TrainingSequence(
        ids=tuple(range(first_id, first_id + len(mask))),
        mask=flags,
        advantages=tuple(0.5 if flag else 0.0 for flag in flags),
        old_logprobs=tuple(-1.0 if flag else 0.0 for flag in flags),
        trajectory_id=name,
    )


def test_steps_that_continue_extend_one_sequence():
    run = trajectory(step(1, (1, 2), (3, 4), False), step(2, (5,), (6,), True))
    assert to_sequences([run], {"t": np.array([0.25, -1.0])}) == [
        TrainingSequence(
            ids=(1, 2, 3, 4, 5, 6),
            mask=(False, False, True, True, False, True),
            advantages=(0.0, 0.0, 0.25, 0.25, 0.0, -1.0),
            old_logprobs=(0.0, 0.0, -0.1 * 3, -0.1 * 4, 0.0, -0.1 * 6),
            trajectory_id="t",
            group="task",
        )
    ]


def test_step_independent_prompts_are_sequences_of_their_own():
    run = trajectory(step(1, (1,), (2,), False), step(2, (3, 4), (5,), False), step(3, (6,), (7,), True))
    found = to_sequences([run], {"t": np.array([1.0, 2.0, 3.0])})
    assert [item.ids for item in found] == [(1, 2), (3, 4, 5, 6, 7)]
    assert found[1].advantages == (0.0, 0.0, 2.0, 0.0, 3.0)


def test_environment_tokens_never_carry_weight_or_logprob():
    run = trajectory(step(1, (1, 2, 3), (4,), False), step(2, (5, 6), (7, 8), True))
    (found,) = to_sequences([run], {"t": np.array([1.0, 1.0])})
    for flag, advantage, logprob in zip(found.mask, found.advantages, found.old_logprobs, strict=True):
        assert flag or (advantage == 0.0 and logprob == 0.0)
    assert generated_tokens([found]) == 3


def test_step_without_generated_tokens_only_adds_context():
    run = trajectory(step(1, (1,), (2,), False), step(2, (3,), (), True), step(3, (4,), (5,), True))
    (found,) = to_sequences([run], {"t": np.array([1.0, 9.0, 2.0])})
    assert found.ids == (1, 2, 3, 4, 5)
    assert 9.0 not in found.advantages
    assert to_sequences([trajectory(step(1, (1,), (), False))], {"t": np.array([1.0])}) == []


@pytest.mark.parametrize(
    ("run", "advantages", "words"),
    [
        (trajectory(step(1, (1,), (2,), False)), {}, "1 steps but none advantages"),
        (trajectory(step(1, (1,), (2,), False)), {"t": np.zeros(2)}, "1 steps but 2 advantages"),
        (trajectory(step(1, (1,), (2,), False)), {"t": np.array([np.nan])}, "not finite"),
        (trajectory(step(1, (), (2,), False)), {"t": np.zeros(1)}, "begin with context"),
    ],
)
def test_contradictions_are_named(run, advantages, words):
    with pytest.raises(DataQualityError, match=words):
        to_sequences([run], advantages)


def test_missing_logprobs_are_named():
    broken = Step(**{name: getattr(step(1, (1,), (2,), False), name) for name in Step.__slots__} | {"logprobs": ()})
    with pytest.raises(DataQualityError, match="1 ids but 0 log-probs"):
        to_sequences([trajectory(broken)], {"t": np.zeros(1)})


def test_micro_batch_by_hand():
    (batch,) = micro_batches([sequence(".x.x..", first_id=10), sequence("..xxx", first_id=50)], max_tokens=8)
    # The second is longer up to its last generated token (5 against 4), so it is the first row.
    assert batch.indices == (1, 0)
    assert batch.input_ids.tolist() == [[50, 51, 52, 53], [10, 11, 12, 0]]
    assert batch.positions.tolist() == [1, 2, 3, 4, 6]
    assert batch.targets.tolist() == [52, 53, 54, 11, 13]
    assert batch.counts == (3, 2)
    assert batch.lengths == (4, 3)


def test_generated_first_token_is_refused():
    with pytest.raises(DataQualityError, match="nothing predicts it"):
        micro_batches([sequence("x.")], 10)


masks = st.lists(
    st.text(alphabet=".x", min_size=1, max_size=30).map(lambda tail: "." + tail + "x"), min_size=1, max_size=25
)


@given(masks, st.integers(1, 80))
def test_micro_batches_hold_every_sequence_once_within_the_bound(texts, bound):
    sequences = [sequence(text, first_id=100 * place) for place, text in enumerate(texts)]
    batches = micro_batches(sequences, bound)
    assert sorted(index for batch in batches for index in batch.indices) == list(range(len(texts)))
    for batch in batches:
        assert batch.input_ids.size <= bound or len(batch.indices) == 1
        start = 0
        for row, (index, count, length) in enumerate(zip(batch.indices, batch.counts, batch.lengths, strict=True)):
            part = slice(start, start + count)
            start += count
            item = sequences[index]
            assert length == used_length(item) - 1
            flat = batch.positions[part] - row * batch.input_ids.shape[1]
            assert [place + 1 for place in flat.tolist()] == [p for p, flag in enumerate(item.mask) if flag]
            assert batch.targets[part].tolist() == [
                token for token, flag in zip(item.ids, item.mask, strict=True) if flag
            ]
        assert start == len(batch.targets)


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=12), st.integers(1, 30))
def test_sharing_micro_batches_compute_each_beginning_once(tails, bound):
    sequences = [
        TrainingSequence(
            ids=(9, *tail, 5),
            mask=(*[False] * len(tail), False, True),
            advantages=(*[0.0] * len(tail), 0.0, 1.0),
            old_logprobs=(*[0.0] * len(tail), 0.0, -1.0),
        )
        for tail in tails
    ]
    batches = micro_batches(sequences, bound, shared=True)
    assert sorted(index for batch in batches for index in batch.indices) == list(range(len(tails)))
    for batch in batches:
        inputs = [sequences[index].ids[:-1] for index in batch.indices]
        assert batch.computed == len({ids[:end] for ids in inputs for end in range(1, len(ids) + 1)})
        assert batch.computed <= bound or len(batch.indices) == 1
        assert inputs == sorted(inputs)
        assert sum(map(len, inputs)) <= 4 * bound or len(batch.indices) == 1


@given(masks, st.integers(1, 80))
def test_micro_batches_are_deterministic(texts, bound):
    sequences = [sequence(text) for text in texts]
    first, second = micro_batches(sequences, bound), micro_batches(list(sequences), bound)
    assert [batch.indices for batch in first] == [batch.indices for batch in second]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 6), st.integers(0, 5))
def test_minibatches_split_by_trajectory(owners, count, iteration):
    sequences = [sequence(".x", name=f"t{owner}") for owner in owners]
    shares = minibatches(sequences, count, seed=3, iteration=iteration)
    assert sorted(index for share in shares for index in share) == list(range(len(owners)))
    homes = [{owners[index] for index in share} for share in shares]
    assert sum(map(len, homes)) == len(set(owners))  # no trajectory lies in two shares
    assert len(shares) == min(count, len(set(owners)))
    assert max(map(len, homes)) - min(map(len, homes)) <= 1


def test_minibatches_depend_on_seed_and_iteration_alone():
    sequences = [sequence(".x", name=f"t{place}") for place in range(20)]
    draw = minibatches(sequences, 4, seed=1, iteration=2)
    assert draw == minibatches(sequences, 4, seed=1, iteration=2)
    assert draw != minibatches(sequences, 4, seed=1, iteration=3)
    assert draw != minibatches(sequences, 4, seed=2, iteration=2)


def test_sequences_without_an_owner_are_split_apart():
    sequences = [sequence(".x") for _ in range(6)]
    assert [len(share) for share in minibatches(sequences, 3, seed=0, iteration=0)] == [2, 2, 2]


@given(masks, st.integers(1, 4))
def test_rank_share_deals_every_sequence_once(texts, ranks):
    sequences = [sequence(text) for text in texts]
    shares = rank_share(sequences, range(len(texts)), ranks)
    assert len(shares) == ranks
    assert sorted(index for share in shares for index in share) == list(range(len(texts)))
    tokens = [sum(used_length(sequences[index]) for index in share) for share in shares]
    assert max(tokens) - min(tokens) <= max(map(used_length, sequences))


# --- values and overlong masking -------------------------------------------------------------------------------------


def test_values_are_read_at_the_last_token_before_a_turn():
    run = trajectory(step(1, (1, 2), (3,), False), step(2, (4,), (5, 6), True), step(3, (7,), (8,), False))
    rows = {"t": np.array([0.1, 0.2, 0.3])}
    first, second = to_sequences([run], {"t": np.zeros(3)}, values=rows, value_targets={"t": np.array([1.0, 2.0, 3.0])})
    assert first.values == (ValuePoint(1, 0.1, 1.0), ValuePoint(3, 0.2, 2.0))
    assert second.values == (ValuePoint(0, 0.3, 3.0),)
    (batch,) = micro_batches([second, first], 100)
    # `first` is longer and comes first; its row is 5 wide (the last token predicts nothing).
    assert batch.indices == (1, 0)
    assert batch.value_counts == (2, 1)
    assert batch.value_positions.tolist() == [1, 3, 5]
    assert batch.old_values.tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert batch.value_targets.tolist() == [1.0, 2.0, 3.0]


def test_values_come_back_by_step():
    run = trajectory(step(1, (1,), (2,), False), step(2, (3,), (), True), step(3, (4,), (5,), False))
    sequences = value_sequences([run])
    assert [len(item.values) for item in sequences] == [1, 1]
    found = join_values([run], sequences, [np.array([0.5]), np.array([0.25])])
    assert found["t"].tolist() == [0.5, 0.0, 0.25]


def test_values_that_do_not_fit_are_refused():
    run = trajectory(step(1, (1,), (2,), False))
    with pytest.raises(DataQualityError, match="1 steps but 2 advantages or values"):
        to_sequences([run], {"t": np.zeros(1)}, values={"t": np.zeros(2)}, value_targets={"t": np.zeros(1)})
    with pytest.raises(DataQualityError, match="not finite"):
        to_sequences([run], {"t": np.zeros(1)}, values={"t": np.zeros(1)}, value_targets={"t": np.array([np.nan])})


def test_overlong_mask_leaves_out_a_cut_turn_alone():
    cut = dataclasses.replace(step(2, (3,), (4, 5), True), truncated=True)
    run = trajectory(step(1, (1,), (2,), False), cut, step(3, (6,), (7,), True))
    rows = {"t": np.array([1.0, 2.0, 3.0])}
    (plain,) = to_sequences([run], rows)
    (masked,) = to_sequences([run], rows, values=rows, value_targets=rows, overlong_mask=True)
    assert masked.ids == plain.ids  # it is still read
    assert masked.mask == (False, True, False, False, False, False, True)
    assert masked.advantages == (0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 3.0)
    assert masked.old_logprobs[3:5] == (0.0, 0.0)
    assert [point.target for point in masked.values] == [1.0, 3.0]


def test_overlong_mask_leaves_out_an_episode_that_filled_the_context():
    run = trajectory(step(1, (1,), (2,), False), step(2, (3,), (4,), True))
    full = dataclasses.replace(run, stop_reason=StopReason.CONTEXT_FULL, trajectory_id="full")
    rows = {"t": np.ones(2), "full": np.ones(2)}
    assert [item.trajectory_id for item in to_sequences([run, full], rows, overlong_mask=True)] == ["t"]
    assert len(to_sequences([run, full], rows)) == 2
