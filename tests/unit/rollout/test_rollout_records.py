"""Parquet round trips are exact, and damaged bytes are refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roleagent.errors import StorageError
from roleagent.rollout.records import read_diagnoses, read_trajectories, write_diagnoses, write_trajectories
from roleagent.types import Diagnosis, DiagnosisStatus, Step, StopReason, Task, Trajectory

TEXT = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=30),
    st.sampled_from(["", "\x00", "\r\n\t", "<|im_end|>", "'; DROP TABLE--", "\u202e\ufeff\U0001f512", "NaN", "null"]),
)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=8).map(tuple)
NUMBER = st.floats(allow_nan=False)
INDEX = st.integers(-(2**63), 2**63 - 1)

STEP = st.builds(
    Step,
    index=INDEX,
    state=TEXT,
    reasoning=TEXT,
    action=TEXT,
    predictions=st.lists(TEXT, max_size=3).map(tuple),
    reward=NUMBER,
    valid_action=st.booleans(),
    malformed=st.booleans(),
    truncated=st.booleans(),
    context_ids=IDS,
    generated_ids=IDS,
    logprobs=st.lists(NUMBER, max_size=8).map(tuple),
    continues=st.booleans(),
)
TASK = st.builds(Task, TEXT, TEXT, TEXT, st.sampled_from(["train", "heldout"]))
TRAJECTORY = st.builds(
    Trajectory,
    trajectory_id=TEXT,
    task=TASK,
    goal=TEXT,
    iteration=INDEX,
    policy_version=INDEX,
    sample_index=INDEX,
    steps=st.lists(STEP, max_size=3).map(tuple),
    final_state=TEXT,
    success=st.booleans(),
    score=NUMBER,
    stop_reason=st.sampled_from(StopReason),
)
DIAGNOSIS = st.builds(
    Diagnosis,
    *[TEXT] * 4,
    INDEX,
    INDEX,
    st.sampled_from(DiagnosisStatus),
    TEXT,
    TEXT,
    INDEX,
    TEXT,
    TEXT,
    TEXT,
    INDEX,
    TEXT,
)


def example(steps: int = 2) -> Trajectory:
    step = Step(1, "s", "r", "a", ("p", ""), 0.5, True, False, False, (1, 2), (3, 4, 5), (-0.1, -2.5, 0.0), False)
    return Trajectory(
        "t", Task("k", "e", "y", "train"), "g", 3, 3, 0, (step,) * steps, "f", True, 1.0, StopReason.SUCCESS
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(TRAJECTORY, max_size=4))
def test_trajectories_round_trip(trajectories: list[Trajectory]) -> None:
    read = read_trajectories(write_trajectories(trajectories))
    assert read == trajectories
    assert repr(read) == repr(trajectories), "also -0.0 and the types"


@settings(deadline=None, max_examples=60)
@given(st.lists(DIAGNOSIS, max_size=4))
def test_diagnoses_round_trip(diagnoses: list[Diagnosis]) -> None:
    read = read_diagnoses(write_diagnoses(diagnoses))
    assert read == diagnoses
    assert repr(read) == repr(diagnoses)


def test_equal_trajectories_and_those_without_steps_stay_apart() -> None:
    batch = [example(), example(), example(0), example(0), example(1)]
    assert read_trajectories(write_trajectories(batch)) == batch


def test_one_row_a_step() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(write_trajectories([example(3), example(0)])))
    assert table.num_rows == 4
    assert table.column("index").to_pylist() == [1, 1, 1, None]
    assert table.column("generated_ids").type == pa.list_(pa.int32())
    assert table.schema.metadata[b"roleagent.schema_version"] == b"1"


def test_nan_and_infinite_logprobs_survive() -> None:
    step = Step(1, "", "", "", (), 0.0, True, False, False, (), (1, 2), (-math.inf, math.nan), False)
    trajectory = Trajectory("t", Task("k", "e", "y", "train"), "", 0, 0, 0, (step,), "", False, 0.0, StopReason.FAILURE)
    (read,) = read_trajectories(write_trajectories([trajectory]))
    assert read.steps[0].logprobs[0] == -math.inf
    assert math.isnan(read.steps[0].logprobs[1])


@pytest.mark.parametrize(
    ("field", "value"),
    [("generated_ids", (2**31,)), ("generated_ids", ("x",)), ("state", "\ud800"), ("reward", "much")],
)
def test_what_cannot_be_stored_is_refused(field: str, value: object) -> None:
    from dataclasses import replace

    step = replace(example(1).steps[0], **{field: value})  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="cannot be stored"):
        write_trajectories([replace(example(1), steps=(step,))])


def test_a_diagnosis_with_lone_surrogates_is_stored_without_them() -> None:
    diagnosis = Diagnosis("t", "k", "e", "r", 0, 0, DiagnosisStatus.QUARANTINED, raw="a\ud800b")
    assert read_diagnoses(write_diagnoses([diagnosis]))[0].raw == "a?b"


@pytest.mark.parametrize("data", [b"", b"PAR1", b"not parquet at all", b"PAR1" + b"\x00" * 64 + b"PAR1"])
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(StorageError, match="not a readable Parquet file"):
        read_trajectories(data)


def test_any_cut_file_is_refused() -> None:
    data = write_trajectories([example()])
    for length in range(0, len(data), 97):
        with pytest.raises(StorageError):
            read_trajectories(data[:length])


def test_a_changed_byte_never_gives_other_trajectories() -> None:
    """Every single changed byte is either detected or harmless (padding and statistics of the footer)."""
    batch = [example()]
    data = write_trajectories(batch)
    detected = 0
    for position in range(0, len(data) // 2, 7):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        try:
            read = read_trajectories(bytes(damaged))
        except StorageError:
            detected += 1
        else:
            assert read == batch
    assert detected > len(data) // 2 // 7 * 0.5


def test_another_file_or_version_is_refused() -> None:
    import pyarrow as pa

    from roleagent.rollout.records import trajectory_schema
    from roleagent.rollout.tables import to_parquet

    with pytest.raises(StorageError, match="holds 'diagnoses'"):
        read_trajectories(write_diagnoses([]))
    with pytest.raises(StorageError, match="schema version 2, expected 1"):
        read_trajectories(to_parquet(trajectory_schema().empty_table(), "trajectories", 2))
    with pytest.raises(StorageError, match="columns differ"):
        read_trajectories(to_parquet(pa.table({"x": [1]}), "trajectories", 1))


def test_impossible_values_are_refused() -> None:
    from roleagent.rollout.records import trajectory_schema
    from roleagent.rollout.tables import from_parquet, to_parquet

    table = from_parquet(write_trajectories([example()]), trajectory_schema(), "trajectories", 1)
    for name, value in (("stop_reason", "bored"), ("position", 5), ("generated_ids", None)):
        place = table.schema.names.index(name)
        import pyarrow as pa

        column = pa.array([value] * table.num_rows, table.schema.field(name).type)
        broken = table.set_column(place, table.schema.field(name), column)
        with pytest.raises(StorageError, match="impossible value"):
            read_trajectories(to_parquet(broken, "trajectories", 1))
