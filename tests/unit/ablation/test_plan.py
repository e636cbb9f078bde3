"""Which runs a request makes, how an ablation is found again, and how the machine is shared."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from roleagent.ablation import machine
from roleagent.ablation.machine import Slots, describe, share
from roleagent.ablation.plan import Request, alone, check_plan, make_plan, read_member, read_sittings, write_plan
from roleagent.ablation.results import collect, is_finished
from roleagent.config import load_config
from roleagent.errors import ConfigError, StorageError
from roleagent.loop import publishing, runs
from roleagent.loop.worker import Worker
from roleagent.storage.manifest import iteration_key
from roleagent.storage.object_store import UnreachableStoreError
from tests.support.committed import committed_run


def request(variants: str = "gigpo,grpo", seeds: int = 2, *overrides: str, **more: Any) -> Request:
    return Request("smoke", (variants,), seeds, overrides, **more)


def sitting(parallel: int) -> dict[str, Any]:
    return {"at": "2026-01-01", "parallel": parallel, "threads": 1, "machine": describe()}


def test_runs_are_variants_times_seeds_seed_after_seed() -> None:
    plan = make_plan(request("full,alpha=0.5", 2, "seed=3"))
    assert [(member.variant, member.seed) for member in plan.members] == [
        ("full", 3),
        ("alpha=0.5", 3),
        ("full", 4),
        ("alpha=0.5", 4),
    ]
    assert plan.members[3].config == load_config("smoke", ["seed=4", "advantage.alpha=0.5"])
    assert plan.members[3].run_id == f"{plan.ablation_id}-alpha_0p5-s4"
    assert plan.reference == "full"


def test_the_same_base_is_the_same_ablation_and_more_seeds_keep_their_runs() -> None:
    first, more = make_plan(request()), make_plan(request("gigpo,grpo,full", 3))
    assert first.ablation_id == more.ablation_id
    assert {member.run_id for member in first.members} < {member.run_id for member in more.members}
    assert make_plan(request("gigpo", 2, "iterations=2")).ablation_id != first.ablation_id
    assert make_plan(request(name="mine")).members[0].run_id == "mine-gigpo-s0"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (request(seeds=0), "--seeds 0: must be from 1"),
        (request("x:seed=3"), "variant 'x' may not change seed"),
        (request("x:tracking.traces=0"), "variant 'x' may not change tracking"),
        (request("x:learner.lr=3"), "variant 'x': --set: learner.lr: unknown key"),
        (request("full,alpha=1"), "variants 'full' and 'alpha=1' are the same configuration"),
        (request("full", against="grpo"), "--against 'grpo' is none of the variants full"),
        (request("full", 1001), "--seeds 1001"),
    ],
)
def test_a_wrong_request_is_told_in_one_line(wrong: Request, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_plan(wrong)
    assert told in str(error.value)


def test_a_name_that_is_no_id_is_refused() -> None:
    with pytest.raises(StorageError, match="is not allowed"):
        make_plan(request(name="a/b"))


def test_what_would_stop_a_run_is_found_before_any_begins() -> None:
    check_plan(make_plan(request()))
    with pytest.raises(ConfigError, match=r"variant 'x': rollout.tasks_per_iteration is 99, but household has 16"):
        check_plan(make_plan(request("x:rollout.tasks_per_iteration=99")))


def test_a_run_that_is_another_one_is_not_taken_for_this() -> None:
    plan = make_plan(request(name="mine"))
    runs.open_run(plan.members[0].config, plan.members[0].run_id)
    check_plan(plan)
    runs.open_run(load_config("smoke"), plan.members[1].run_id)
    with pytest.raises(ConfigError, match="run mine-grpo-s0 exists with another configuration"):
        check_plan(plan)


def test_a_name_is_of_one_base_configuration() -> None:
    # Its report and its MLflow run would mix the tables of both.
    first = make_plan(request("gigpo,grpo", 1, name="mine"))
    write_plan(first, sitting(1))
    check_plan(make_plan(request("gigpo,rloo", 2, name="mine")))
    other = make_plan(request("rloo", 1, "iterations=2", "advantage.alpha=0.5", name="mine"))
    with pytest.raises(ConfigError, match="ablation mine exists with another base") as error:
        check_plan(other)
    assert "(iterations is 3 there, advantage.alpha is 1.0 there)" in str(error.value)
    (first.folder / "plan.json").write_text('{"base": {"seed": -1}}', encoding="utf-8")
    check_plan(other)


def test_the_folder_keeps_what_is_needed_to_repeat_it() -> None:
    plan = make_plan(request("gigpo,grpo", 2, "iterations=1"))
    for parallel in (1, 2):
        write_plan(plan, sitting(parallel))
    value = json.loads((plan.folder / "plan.json").read_text(encoding="utf-8"))
    assert value["command"] == "roleagent ablate --preset smoke --variants gigpo,grpo --seeds 2 --set iterations=1"
    assert value["seeds"] == [0, 1]
    assert value["variants"]["grpo"][0] == "advantage.estimator=grpo"
    assert [item["run_id"] for item in value["runs"]] == [member.run_id for member in plan.members]
    # The preset beside it makes the same plan again, wherever the package's own goes.
    again = Request(str(plan.folder / "preset.yaml"), ("gigpo,grpo",), 2, ("iterations=1",))
    assert make_plan(again).members == plan.members
    assert read_member(plan.folder, plan.members[1].run_id) == plan.members[1]
    assert [item["parallel"] for item in read_sittings(plan.folder)] == [1, 2]
    with pytest.raises(StorageError, match="has no run nobody"):
        read_member(plan.folder, "nobody")


@pytest.mark.parametrize("line", [b'{"parallel": 3', b"7", b'{"at": ""}', b"\xff\xfe", b"[" * 100_000])
def test_a_line_that_is_no_sitting_costs_no_other(line: bytes) -> None:
    plan = make_plan(request())
    write_plan(plan, sitting(1))
    with (plan.folder / "sittings.jsonl").open("ab") as file:
        file.write(line)  # and no line's end: a kill cut it off
    write_plan(plan, sitting(2))
    assert [item["parallel"] for item in read_sittings(plan.folder)] == [1, 2]


@pytest.mark.parametrize("text", ["[]", '{"runs": 3}', '{"runs": [3]}', "[" * 100_000, ""])
def test_a_damaged_plan_is_told(text: str) -> None:
    plan = make_plan(request())
    write_plan(plan, sitting(1))
    (plan.folder / "plan.json").write_text(text, encoding="utf-8")
    with pytest.raises(StorageError, match=r"plan\.json has no run .*, or is damaged"):
        read_member(plan.folder, plan.members[0].run_id)


def test_an_ablation_is_run_by_one_process_at_a_time() -> None:
    plan = make_plan(request())
    with alone(plan), pytest.raises(ConfigError, match="is being run by another process"), alone(plan):
        pass
    with alone(plan):
        pass


def test_a_home_that_cannot_be_written_is_told(home: Path) -> None:
    home.write_text("no folder")
    with pytest.raises(StorageError, match="set ROLEAGENT_HOME to a writable folder"), alone(make_plan(request())):
        pass


def test_runs_that_did_not_finish_are_told_and_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "check", lambda config: None)
    plan = make_plan(request("gigpo,grpo", 2))
    done, begun, *_ = (member.run_id for member in plan.members)
    held = {"success/heldout": 0.5, "heldout/n": 8.0, "heldout/low": 0.2, "heldout/high": 0.8}
    row = {"rollout/episodes": 8.0, "seconds/rollout": 2.0}
    worker = committed_run([held, row, row, {**row, **held}], run_id=done)
    runs.write_status(worker, "finished")
    runs.write_status(committed_run([held], run_id=begun), "failed", "out of luck")
    results = collect(plan, {plan.members[2].run_id: "could not start"})
    assert [(item.status, item.reason) for item in results.outcomes] == [
        ("finished", ""),
        ("failed", "out of luck"),
        ("failed", "could not start"),
        ("new", ""),
    ]
    assert results.outcomes[0].curve[-1].episodes == 24.0
    assert results.comparisons[0].budget == 24.0
    assert len(results.failed) == 3


def finished_run(run_id: str) -> Worker:
    held = {"success/heldout": 0.5, "heldout/n": 8.0, "heldout/low": 0.2, "heldout/high": 0.8}
    row = {"rollout/episodes": 8.0, "seconds/rollout": 2.0}
    worker = committed_run([held, row, row, {**row, **held}], run_id=run_id)
    runs.write_status(worker, "finished")
    return worker


def test_a_run_that_lost_an_iteration_is_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its curve would end at 16 episodes, and all others would be read off there.
    monkeypatch.setattr(runs, "check", lambda config: None)
    plan = make_plan(request("gigpo,grpo", 1))
    lost, kept = (finished_run(member.run_id) for member in plan.members)
    lost.store.store.delete(iteration_key(lost.run_id, 1, "manifest.json"))
    assert (is_finished(lost), is_finished(kept)) == (False, True)
    results = collect(plan, {})
    assert [outcome.status for outcome in results.outcomes] == ["interrupted", "finished"]
    assert results.comparisons[0].budget == 24.0


def test_a_damaged_run_does_not_count_and_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "check", lambda config: None)
    plan = make_plan(request("gigpo,grpo", 1))
    damaged, _ = (finished_run(member.run_id) for member in plan.members)
    damaged.store.store.put(iteration_key(damaged.run_id, 1, "metrics.json"), b"{}")
    results = collect(plan, {})
    assert [outcome.status for outcome in results.outcomes] == ["failed", "finished"]
    assert "metrics.json is not what was committed: resume the run" in results.outcomes[0].reason
    assert results.comparisons[0].lines[1].success.n == 1

    def unreachable(worker: Worker) -> list[dict[str, Any]]:
        raise UnreachableStoreError("no answer")

    monkeypatch.setattr(publishing, "history", unreachable)
    with pytest.raises(UnreachableStoreError):  # this says nothing about the run
        collect(plan, {})


@pytest.mark.parametrize(
    ("runs_", "parallel", "threads", "devices", "slots"),
    [
        (15, 0, 0, (), Slots(8, 1)),
        (15, 0, 2, (), Slots(4, 2)),
        (2, 0, 0, (), Slots(2, 4)),
        (15, 3, 0, (), Slots(3, 2)),
        (4, 9, 1, (), Slots(4, 1)),
        (15, 0, 16, (), Slots(1, 16)),
        (15, 0, 0, ("0", "1"), Slots(2, 4, ("0", "1"))),
    ],
)
def test_how_eight_cores_are_shared(
    runs_: int, parallel: int, threads: int, devices: tuple[str, ...], slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 8)
    assert share(runs_, parallel=parallel, threads=threads, devices=devices) == slots


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="--parallel -1 --threads 0: both must be"):
        share(2, parallel=-1)


def test_visible_gpus_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert machine.gpus() == ("2", "5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert machine.gpus() == ()


def test_the_machine_is_described() -> None:
    found = describe()
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["packages"]["torch"]
    assert json.loads(json.dumps(found)) == found
