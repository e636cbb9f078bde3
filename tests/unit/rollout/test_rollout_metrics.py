"""Hand-computed metrics."""

from __future__ import annotations

import pytest

from roleagent.rollout.meter import RolloutMeter
from roleagent.rollout.metrics import metric_name, rollout_metrics
from roleagent.types import Step, StopReason, Task, Trajectory


def step(state: str, action: str, *, valid: bool = True, malformed: bool = False, truncated: bool = False) -> Step:
    return Step(1, state, "", action, (), 0.0, valid, malformed, truncated, (1,) * 3, (2,) * 5, (0.0,) * 5, True)


def trajectory(kind: str, reason: StopReason, steps: list[Step], final: str, score: float) -> Trajectory:
    return Trajectory(
        "t",
        Task("k", "e", kind, "train"),
        "g",
        0,
        0,
        0,
        tuple(steps),
        final,
        reason is StopReason.SUCCESS,
        score,
        reason,
    )


def test_hand_computed() -> None:
    batch = [
        trajectory("put", StopReason.SUCCESS, [step("a", "go"), step("b", "take")], "c", 1.0),
        trajectory(
            "put",
            StopReason.MAX_STEPS,
            [
                step("a", "go"),
                step("a", "go", valid=False),
                step("n", "", valid=False, malformed=True),
                step("n", "go"),
            ],
            "d",
            0.0,
        ),
        trajectory(
            "clean", StopReason.ENVIRONMENT_TIMEOUT, [step("a", "go", truncated=True), step("b", "go")], "b", 0.5
        ),
        trajectory("heat: it", StopReason.CONTEXT_FULL, [], "a", 0.0),
    ]
    metrics = rollout_metrics(batch)
    expected = {
        "episodes": 4,
        "success_rate": 1 / 4,
        "score_mean": 1.5 / 4,
        "steps_mean": 8 / 4,
        "invalid_action_share": 1 / 8,
        "malformed_share": 1 / 8,
        "truncated_share": 1 / 8,
        "turn_tokens_mean": 5,
        "action_repeat_share": 2 / 3,  # pairs: go-take, go-go (repeat), go-go (repeat); a malformed turn starts anew
        "no_op_share": 3 / 8,  # a-a, n-n, b-b
        "toggle_share": 0,
        "tokens_generated": 40,
        "tokens_total": 64,
        "success_rate/put": 1 / 2,
        "success_rate/clean": 0,
        "success_rate/heat_ it": 0,
        "stop/success": 1 / 4,
        "stop/failure": 0,
        "stop/max_steps": 1 / 4,
        "stop/context_full": 1 / 4,
        "stop/malformed": 0,
        "stop/environment_timeout": 1 / 4,
        "stop/environment_error": 0,
    }
    assert metrics == pytest.approx(expected)
    assert set(metrics) == set(expected)
    assert all(type(value) is float for value in metrics.values())


def test_nothing_gives_zeros() -> None:
    metrics = rollout_metrics([])
    assert metrics["episodes"] == 0.0
    assert set(metrics.values()) == {0.0}


def test_metric_names_have_no_foreign_characters() -> None:
    assert metric_name("pick/and:place!") == "pick_and_place_"
    assert metric_name("") == "unnamed"


def test_meter_splits_the_time() -> None:
    meter = RolloutMeter(
        total_seconds=10.0,
        prefill_seconds=2.0,
        decode_seconds=6.0,
        environment_seconds=1.0,
        decode_steps=100,
        decoded_tokens=400,
        prediction_tokens=100,
        prediction_seconds=1.5,
    )
    metrics = meter.metrics()
    assert metrics["loop_share"] == pytest.approx(0.1)
    assert metrics["prediction_seconds"] == pytest.approx(1.5)
    assert metrics["tokens_per_second"] == pytest.approx(40)
    assert RolloutMeter().metrics()["loop_share"] == 0.0


def test_a_decode_step_is_shared_among_its_tokens() -> None:
    meter = RolloutMeter()
    meter.decoded(1.0, tokens=4, predicting=0)
    meter.decoded(2.0, tokens=4, predicting=1)
    meter.decoded(3.0, tokens=2, predicting=2)
    assert (meter.decode_seconds, meter.decode_steps) == (6.0, 3)
    assert meter.prediction_seconds == pytest.approx(0.5 + 3.0)
    assert (meter.prediction_only_seconds, meter.prediction_any_seconds) == (3.0, 5.0)
