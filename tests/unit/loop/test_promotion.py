"""When the champion changes: with decisions computed by hand, and evaluations whose outcomes are given."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from roleagent.config import load_config
from roleagent.errors import ConfigError
from roleagent.loop import evaluating, promotion, runs
from roleagent.loop.evaluating import Evaluation, committed_version
from roleagent.loop.statistics import success_rate
from roleagent.loop.worker import Worker
from roleagent.policy import model
from roleagent.rollout import loop as rollout
from roleagent.tracking import tracker as tracking
from roleagent.tracking.registry import ModelVersion
from tests.support.committed import MakeRun

CHAMPION = ModelVersion("role-agent", "4", "s3://bucket/old/checkpoint", "old-run", 60, ("champion",))


class Registry:
    """A model registry that holds at most one champion."""

    def __init__(self, champion: ModelVersion | None) -> None:
        self.champion = champion
        self.moves: list[tuple[str, str, str]] = []
        self.ended: list[str] = []

    def start_run(self, *arguments: object) -> str:
        return "mlflow-id"

    def find_model(self, name: str, alias: str) -> ModelVersion | None:
        assert alias == promotion.ALIAS
        return self.champion

    def register_model(self, name: str, uri: str, iteration: int) -> ModelVersion:
        return ModelVersion(name, "5", uri, "a-run", iteration, ())

    def set_alias(self, name: str, alias: str, version: str) -> None:
        self.moves.append((name, alias, version))

    def end(self, status: str) -> None:
        self.ended.append(status)


def evaluation(wins: Sequence[bool]) -> Evaluation:
    episodes: Any = tuple(SimpleNamespace(success=won) for won in wins)
    return Evaluation("a-run", 1, 0.4, 0, success_rate(sum(wins), len(wins)), {}, episodes)


def compare(
    make_run: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    registry: Registry,
    challenger: Sequence[bool],
    champion: Sequence[bool] = (),
) -> promotion.Verdict:
    worker = make_run([{}, {}])
    monkeypatch.setattr(Worker, "tracker", registry)
    monkeypatch.setattr(promotion, "evaluate_run", lambda *_, **__: evaluation(challenger))
    monkeypatch.setattr(promotion, "_evaluate_champion", lambda *_: evaluation(champion))
    return promotion.compare_and_promote(worker.run_id, "role-agent", tasks=len(challenger), significance=0.05)


def test_the_first_version_is_the_champion(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(None)
    verdict = compare(make_run, monkeypatch, registry, [True, False])
    assert verdict.promoted
    assert registry.moves == [("role-agent", "champion", "5")]
    assert registry.ended == ["FINISHED"]
    assert verdict.as_dict()["champion"] is None


@pytest.mark.parametrize(
    ("gained", "lost", "promoted", "reason"),
    [
        (5, 0, True, "p = 0.0312 <= 0.05"),  # 1/32
        (4, 0, False, "p = 0.0625 > 0.05"),  # 1/16
        (9, 1, True, "p = 0.0107 <= 0.05"),  # 11/1024
        (3, 3, False, "p = 0.6562 > 0.05"),  # 42/64
        (0, 0, False, "p = 1.0000 > 0.05"),
        (0, 5, False, "p = 1.0000 > 0.05"),
    ],
)
def test_the_alias_moves_only_for_a_significant_gain(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, gained: int, lost: int, promoted: bool, reason: str
) -> None:
    registry = Registry(CHAMPION)
    before = [False] * gained + [True] * lost + [True] * 4
    after = [True] * gained + [False] * lost + [True] * 4
    verdict = compare(make_run, monkeypatch, registry, after, before)
    assert (verdict.promoted, verdict.reason) == (promoted, reason)
    assert registry.moves == ([("role-agent", "champion", "5")] if promoted else [])
    assert verdict.champion_version == "4"


def test_training_starts_from_the_champion(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config("smoke")
    monkeypatch.setattr(tracking, "Tracker", lambda *_: Registry(CHAMPION))
    started = promotion.start_from_champion(config, "role-agent")
    assert started.policy.model == "s3://bucket/old/checkpoint"
    assert started.model_copy(update={"policy": config.policy}) == config
    monkeypatch.setattr(tracking, "Tracker", lambda *_: Registry(None))
    assert promotion.start_from_champion(config, "role-agent") == config


def test_report_of_a_verdict() -> None:
    verdict = promotion.Verdict(
        "role-agent", "a-run", "5", False, "p = 0.0625 > 0.05", success_rate(8, 10), success_rate(4, 10), "4", 0.0625
    )
    assert promotion.report(verdict.as_dict()) == (
        "# role-agent: version 5 does not replace the champion\n\nReason: p = 0.0625 > 0.05.\n\n"
        "| policy | held-out success | 95 % interval | tasks |\n|---|---|---|---|\n"
        "| challenger (a-run) | 80.0% | 49.0% to 94.3% | 10 |\n"
        "| champion (version 4) | 40.0% | 16.8% to 68.7% | 10 |\n"
    )


def test_report_of_a_first_version_has_one_row() -> None:
    verdict = promotion.Verdict("m", "a-run", "1", True, "the first version", success_rate(1, 2), None, "", 0.0)
    text = promotion.report(verdict.as_dict())
    assert text.startswith("# m: version 1 is the new champion\n")
    assert text.count("\n| ch") == 1


# -- which version is evaluated ------------------------------------------------------------------------------------


def test_the_newest_valid_version_is_the_default(make_run: MakeRun) -> None:
    worker = make_run([{}, {}, {}])
    assert committed_version(worker, -1) == 2
    assert committed_version(worker, 1) == 1


def test_a_version_that_is_not_there_is_told(make_run: MakeRun) -> None:
    with pytest.raises(ConfigError, match="run a-run has no committed iteration 7"):
        committed_version(make_run([{}]), 7)
    with pytest.raises(ConfigError, match="has no committed iteration yet"):
        committed_version(make_run(run_id="empty"), -1)


@pytest.mark.parametrize(("asked", "played"), [(None, 16), (3, 3), (16, 16)])
def test_evaluation_plays_what_is_asked_for_or_all_there_are(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, asked: int | None, played: int
) -> None:
    worker = make_run([{}])
    counts: list[int] = []
    monkeypatch.setattr(Worker, "engine", lambda *_: SimpleNamespace(max_context=1024))
    monkeypatch.setattr(Worker, "policy_tokenizer", None)

    def collect(engine: Any, tokenizer: Any, make: Any, pairs: Sequence[Any], *_: Any, **__: Any) -> list[Any]:
        counts.append(len(pairs))
        return [SimpleNamespace(success=True, task=SimpleNamespace(task_type="heat"))] * len(pairs)

    monkeypatch.setattr(rollout, "collect", collect)
    evaluating.evaluate_run(worker, tasks=asked)
    assert counts == [played]


def test_more_tasks_than_there_are_are_refused_before_a_model_is_loaded(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(Worker, "engine", never)
    monkeypatch.setattr(model, "load_policy", never)
    told = "17 held-out tasks were asked for; the environment has 16: use --tasks 16"
    with pytest.raises(ConfigError, match=told):
        evaluating.evaluate_run(make_run([{}]), tasks=17)
    with pytest.raises(ConfigError, match=told):
        evaluating.evaluate_model(load_config("smoke"), tasks=17)
    assert runs.read_status(runs.find_run("a-run").worker())["status"] == "new"
