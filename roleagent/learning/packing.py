"""From trajectories to padded micro batches: which tokens are trained, with which weight.

A trajectory whose steps continue one another is one sequence; a step with a prompt of its own begins a new one
(the method, section 1 "Loss"; faults 4 and 5 of section 6: ids are never made again from text, and tokens that
the model did not generate never enter the loss). Micro batches are bucketed by length and padded on the right:
under causal attention no real token can see what stands to its right, so no attention mask is needed. Where the pass
neither pads nor computes twice what sequences begin with (see `packed_llama`), they are bucketed by their beginnings.

Pure NumPy; nothing here is random except the seeded split into minibatches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from roleagent.errors import DataQualityError
from roleagent.learning.prefix_tree import common_prefix
from roleagent.seeding import generator
from roleagent.types import StopReason, TrainingSequence, Trajectory, ValuePoint

#: Tokens of a micro batch before what they have in common is counted once, over its bound: keys and values are spread.
_MOST_SPREAD = 4

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some sequences, padded on the right, and the n generated tokens in them.

    `input_ids` is int64 [B, L] where L is one less than the longest sequence: a last token predicts nothing.
    The arrays of tokens have length n and run sequence by sequence, in token order. Those of values have length k, one
    a step whose value is asked for; k is 0 without a value head.
    """

    indices: tuple[int, ...]  #: which sequences, as positions in the list that was packed
    counts: tuple[int, ...]  #: generated tokens of each of them; their sum is n
    lengths: tuple[int, ...]  #: input tokens of each of them, padding left out
    computed: int  #: tokens that the pass runs over: B * L, or the different beginnings if it shares them
    input_ids: IntArray
    positions: IntArray  #: flat index in [B * L] of the hidden state that predicts each generated token
    targets: IntArray  #: the generated ids
    advantages: FloatArray
    old_logprobs: FloatArray  #: as the sampler recorded them
    value_counts: tuple[int, ...]  #: steps of each sequence; their sum is k
    value_positions: IntArray  #: flat index in [B * L] of the hidden state that has seen s_t, [k]
    old_values: FloatArray  #: V(s_t) when the advantages were made, [k]
    value_targets: FloatArray  #: R_t, [k]


StepArrays = Mapping[str, npt.NDArray[np.floating]]


def to_sequences(
    trajectories: Iterable[Trajectory],
    step_advantages: StepArrays,
    *,
    values: StepArrays | None = None,
    value_targets: StepArrays | None = None,
    overlong_mask: bool = False,
) -> list[TrainingSequence]:
    """Lay out the tokens of every trajectory; the advantage of step t goes to every id generated in step t.

    Args:
        trajectories: their order decides the order of the result.
        step_advantages: trajectory id -> array [T].
        values: trajectory id -> V(s_t), [T], where a value head is trained.
        value_targets: trajectory id -> R_t, [T]; goes with `values`.
        overlong_mask: leave out what was cut off (DAPO's overlong filtering, arXiv 2503.14476, section 3.4): its end
            is missing, so its reward says nothing of it. The ids stay, as context with mask 0: those of a turn that
            hit its token limit, and of a whole episode that filled the context.

    Returns:
        Sequences that hold at least one generated token.

    Raises:
        DataQualityError: a record contradicts itself (lengths differ, an advantage or log-prob is not finite,
            the first generated token has nothing before it).
    """
    result = []
    for trajectory in trajectories:
        key = trajectory.trajectory_id
        columns = [step_advantages, *([] if values is None or value_targets is None else [values, value_targets])]
        found = _sequences_of(trajectory, [column.get(key) for column in columns], overlong_mask)
        result += [sequence for sequence in found if any(sequence.mask)]
    return result


def value_sequences(trajectories: Iterable[Trajectory]) -> list[TrainingSequence]:
    """Sequences without advantages that name the place of every step's value, for `Learner.values`."""
    listed = list(trajectories)
    zeros = {run.trajectory_id: np.zeros(len(run.steps)) for run in listed}
    return to_sequences(listed, zeros, values=zeros, value_targets=zeros)


def join_values(
    trajectories: Iterable[Trajectory],
    sequences: Iterable[TrainingSequence],
    values: Iterable[npt.NDArray[np.float64]],
) -> dict[str, npt.NDArray[np.float64]]:
    """Put the values of `value_sequences` together again: trajectory id -> V(s_t), [T].

    A step in which nothing was generated has no place to read a value; it gets 0.
    """
    parts: dict[str, list[float]] = {}
    for sequence, found in zip(sequences, values, strict=True):
        parts.setdefault(sequence.trajectory_id, []).extend(found.tolist())
    result = {}
    for run in trajectories:
        row = np.zeros(len(run.steps))
        row[[bool(step.generated_ids) for step in run.steps]] = parts.get(run.trajectory_id, [])
        result[run.trajectory_id] = row
    return result


def _sequences_of(
    trajectory: Trajectory, columns: Sequence[npt.NDArray[np.floating] | None], overlong_mask: bool
) -> Iterable[TrainingSequence]:
    where = f"trajectory {trajectory.trajectory_id}"
    for column in columns:
        if column is None or len(column) != len(trajectory.steps):
            found = "none" if column is None else len(column)
            raise DataQualityError(
                f"{where}: {len(trajectory.steps)} steps but {found} advantages or values; score the batch again"
            )
    cut_off = overlong_mask and trajectory.stop_reason is StopReason.CONTEXT_FULL
    ids: list[int] = []
    mask: list[bool] = []
    weights: list[float] = []
    logprobs: list[float] = []
    points: list[ValuePoint] = []

    def finished() -> TrainingSequence:
        return TrainingSequence(
            ids=tuple(ids),
            mask=tuple(mask),
            advantages=tuple(weights),
            old_logprobs=tuple(logprobs),
            trajectory_id=trajectory.trajectory_id,
            values=tuple(points),
            group=trajectory.task.task_id,
        )

    for step, row in zip(trajectory.steps, zip(*columns, strict=True), strict=True):
        advantage, *value = map(float, row)
        generated = len(step.generated_ids)
        if len(step.logprobs) != generated:
            raise DataQualityError(f"{where}, step {step.index}: {generated} ids but {len(step.logprobs)} log-probs")
        if not all(map(math.isfinite, (advantage, *value, *step.logprobs))):
            raise DataQualityError(f"{where}, step {step.index}: an advantage, value or log-prob is not finite")
        if not step.continues and ids:
            yield finished()
            ids, mask, weights, logprobs, points = [], [], [], [], []
        if not ids and not step.context_ids:
            raise DataQualityError(f"{where}, step {step.index}: a sequence must begin with context tokens")
        context = len(step.context_ids)
        trained = not (cut_off or (overlong_mask and step.truncated))
        if value and generated and trained:
            points.append(ValuePoint(len(ids) + context - 1, *value))
        ids += (*step.context_ids, *step.generated_ids)
        mask += [False] * context + [trained] * generated
        weights += [0.0] * context + [advantage if trained else 0.0] * generated
        logprobs += (*([0.0] * context), *(step.logprobs if trained else [0.0] * generated))
    if ids:
        yield finished()


def generated_tokens(sequences: Iterable[TrainingSequence]) -> int:
    """Number of tokens that carry loss."""
    return sum(sum(sequence.mask) for sequence in sequences)


def used_length(sequence: TrainingSequence) -> int:
    """Tokens up to the last generated one; what follows it cannot change the loss."""
    return len(sequence.mask) - sequence.mask[::-1].index(True)


def minibatches(sequences: Sequence[TrainingSequence], count: int, *, seed: int, iteration: int) -> list[list[int]]:
    """Split by trajectory into at most `count` equal shares, drawn from (seed, iteration) alone.

    All sequences of one trajectory stay together; a sequence without a trajectory id counts as one trajectory.
    Every pass over the batch uses the same split.

    Returns:
        Positions in `sequences`, ascending within a share. No share is empty.
    """
    owners: dict[str, list[int]] = {}
    for position, sequence in enumerate(sequences):
        owners.setdefault(sequence.trajectory_id or f"\0{position}", []).append(position)
    groups = list(owners.values())
    order = generator(seed, iteration, "minibatches").permutation(len(groups))
    shares = np.array_split(order, count) if count > 1 else [order]
    return [sorted(position for group in share for position in groups[group]) for share in shares if len(share)]


def rank_share(sequences: Sequence[TrainingSequence], indices: Sequence[int], ranks: int) -> list[list[int]]:
    """Deal sequences to ranks, longest first and back and forth, so that every rank gets about as many tokens."""
    longest_first = sorted(indices, key=lambda index: (-used_length(sequences[index]), index))
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for turn, index in enumerate(longest_first):
        lap, place = divmod(turn, ranks)
        shares[place if lap % 2 == 0 else ranks - 1 - place].append(index)
    return shares


def micro_batches(
    sequences: Sequence[TrainingSequence],
    max_tokens: int,
    indices: Sequence[int] | None = None,
    *,
    shared: bool = False,
) -> list[MicroBatch]:
    """Pack sequences of similar length together, longest first, every one exactly once.

    Args:
        sequences: the whole list.
        max_tokens: bound of `MicroBatch.computed`, and of a quarter of all tokens; a longer sequence is a batch of its
            own.
        indices: which of them to pack (default: all); each must hold a generated token.
        shared: the pass computes what sequences begin with once: put those together that begin alike.

    Raises:
        DataQualityError: a sequence begins with a generated token.
    """
    chosen = range(len(sequences)) if indices is None else indices
    if shared:
        return _sharing(sequences, max_tokens, chosen)
    # Longest first: the largest allocation comes first, so memory does not fail late in an update.
    ordered = sorted(chosen, key=lambda index: (-used_length(sequences[index]), index))
    batches: list[list[int]] = []
    width = 0
    for index in ordered:
        if batches and (len(batches[-1]) + 1) * width <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
            width = used_length(sequences[index]) - 1
    return [_pack(sequences, batch) for batch in batches]


def _sharing(sequences: Sequence[TrainingSequence], max_tokens: int, chosen: Iterable[int]) -> list[MicroBatch]:
    """Micro batches of neighbours in the order of the ids, in which what two have in common is longest.

    A cut makes what its two neighbours have in common be computed twice; the cuts are those that cost least in all.
    """
    inputs = {index: np.asarray(sequences[index].ids)[: used_length(sequences[index]) - 1] for index in chosen}
    order = sorted(inputs, key=lambda index: (inputs[index].tolist(), index))
    lengths = [len(inputs[index]) for index in order]
    common = [common_prefix(inputs[first], inputs[second]) for first, second in pairwise(order)]
    # best[end]: tokens computed for the first `end` sequences, number of micro batches, and where the last one begins.
    best = [(0, 0, 0)]
    for end in range(1, len(order) + 1):
        choices = []
        size = spread = 0
        for begin in range(end - 1, -1, -1):
            size += lengths[begin] - (common[begin] if begin < end - 1 else 0)
            spread += lengths[begin]
            if (size > max_tokens or spread > _MOST_SPREAD * max_tokens) and begin < end - 1:
                break
            computed, count, _ = best[begin]
            choices.append((computed + size, count + 1, begin))
        best.append(min(choices))
    batches = []
    end = len(order)
    while end:
        computed, _, begin = best[end]
        batches.append(_pack(sequences, order[begin:end], computed - best[begin][0]))
        end = begin
    return batches[::-1]


def _pack(sequences: Sequence[TrainingSequence], indices: Sequence[int], computed: int | None = None) -> MicroBatch:
    width = max(used_length(sequences[index]) for index in indices) - 1
    input_ids = np.zeros((len(indices), width), dtype=np.int64)  # which id pads is of no matter: nothing sees it
    positions, targets, advantages, logprobs, lengths = [], [], [], [], []
    points: list[tuple[int, float, float]] = []
    for row, index in enumerate(indices):
        sequence = sequences[index]
        ids = np.asarray(sequence.ids, dtype=np.int64)[: used_length(sequence)]
        input_ids[row, : len(ids) - 1] = ids[:-1]
        where = np.flatnonzero(np.asarray(sequence.mask, dtype=bool))
        if where[0] == 0:
            raise DataQualityError(f"sequence {index} begins with a generated token; nothing predicts it")
        positions.append(row * width + where - 1)
        targets.append(ids[where])
        advantages.append(np.asarray(sequence.advantages, dtype=np.float32)[where])
        logprobs.append(np.asarray(sequence.old_logprobs, dtype=np.float32)[where])
        lengths.append(len(ids) - 1)
        points += [(row * width + point.position, point.old, point.target) for point in sequence.values]
    places, old_values, value_targets = zip(*points, strict=True) if points else ((), (), ())
    return MicroBatch(
        indices=tuple(indices),
        counts=tuple(map(len, targets)),
        lengths=tuple(lengths),
        computed=input_ids.size if computed is None else computed,
        input_ids=input_ids,
        positions=np.concatenate(positions),
        targets=np.concatenate(targets),
        advantages=np.concatenate(advantages),
        old_logprobs=np.concatenate(logprobs),
        value_counts=tuple(len(sequences[index].values) for index in indices),
        value_positions=np.asarray(places, dtype=np.int64),
        old_values=np.asarray(old_values, dtype=np.float32),
        value_targets=np.asarray(value_targets, dtype=np.float32),
    )
