"""Our engine against the stock engine of ALFWorld: what it once answered, and what it answers now.

The recorded answers are digests; the games come from the data. `python -m tests.differential.alfworld` records them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from roleagent.environments.household.generator import task_id
from tests.differential.alfworld import compare, plan
from tests.differential.games import Source, load
from tests.differential.ours import replay
from tests.differential.recording import Unit, published, record
from tests.support.commands import ROOT

LIVE = (
    Unit(
        Source("valid_seen", "pick_cool_then_place_in_recep-Pan-None-StoveBurner-18/trial_T20190906_181023_216915"),
        walkthrough=True,
        seeds=(7,),
        steps=8,
    ),
    Unit(
        Source("old", "look_at_obj_in_light-KeyChain-None-DeskLamp-327/trial_T20190906_202601_548273"), walkthrough=True
    ),
    Unit(Source("household", task_id("medium", "heldout", 5)), walkthrough=True),
)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What the stock engine, untouched, answers now."""
    folder = tmp_path_factory.mktemp("live")
    return [record(unit, folder) for unit in LIVE]


def differs(kept: dict[str, Any], episode: dict[str, Any]) -> str:
    """Return where our answers of a recorded episode part from the stock engine's; empty if nowhere."""
    commands = episode["commands"].split("\r") if "commands" in episode else None
    ours = replay(Source(kept["kind"], kept["game"]), commands)
    digests = [episode["digests"][index : index + 8] for index in range(0, len(episode["digests"]), 8)]
    if len(ours) != len(digests):
        return f"{len(ours)} answers instead of {len(digests)}"
    for number, ((command, answer), digest) in enumerate(zip(ours, digests, strict=True)):
        if answer.digest() != digest:
            return f"answer {number}, to {command!r}: {answer}"
    return ""


def test_every_recorded_answer_is_ours() -> None:
    """Words, command lists, scores and wins: walkthroughs, and play that is meant to find differences."""
    kept = published()
    load("train", {unit["game"] for unit in kept if unit["kind"] == "train"})
    load("valid_seen")
    found = {}
    answers = 0
    for unit in kept:
        for episode in unit["episodes"]:
            answers += len(episode["digests"]) // 8
            where = differs(unit, episode)
            if where:
                found[unit["kind"], unit["game"], episode["how"]] = where
    assert found == {}
    assert {unit["kind"] for unit in kept} == {"valid_seen", "train", "old", "household"}
    assert answers > 10_000


def test_a_wrong_answer_would_be_found() -> None:
    unit = next(unit for unit in published() if unit["kind"] == "household")
    episode = unit["episodes"][-1]
    assert differs(unit, episode) == ""
    digest = episode["digests"]
    assert "answer 1" in differs(unit, {**episode, "digests": digest[:8] + "00000000" + digest[16:]})
    assert "answers instead of" in differs(unit, {**episode, "digests": digest[:-8]})
    first, *others = episode["commands"].split("\r")
    assert "answer 1" in differs(unit, {**episode, "commands": "\r".join((f"{first}!", *others))})


def test_the_stock_engine_answers_so_today(live: list[Path]) -> None:
    result = compare([json.loads(file.read_text(encoding="utf-8")) for file in live])
    assert result["differences"] == []
    assert result["covered"]["won"] >= len(LIVE)
    assert result["covered"]["answers"] > 25


def test_recording_quickly_changes_no_answer(live: list[Path], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom tests.differential.recording import record\n"
        "from tests.differential.stock import quicken\nfrom tests.integration.test_alfworld_stock import LIVE\n"
        "folder = Path(sys.argv[1])\nquicken()\nfor unit in LIVE:\n    record(unit, folder)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)  # it holds for a whole process
    assert [(tmp_path / file.name).read_bytes() for file in live] == [file.read_bytes() for file in live]


def test_the_full_comparison_covers_what_it_says() -> None:
    units = plan(seen=140, train=300, plays=200, old=20, household=30, steps=60)
    walked = [unit for unit in units if unit.walkthrough]
    assert {kind: sum(unit.source.kind == kind for unit in walked) for kind in ("valid_seen", "train")} == {
        "valid_seen": 140,
        "train": 300,
    }
    played = [unit for unit in units if unit.seeds and unit.source.kind in ("valid_seen", "train")]
    assert len(played) == 200
    assert {unit.steps for unit in played} == {60}
    assert len({unit.key for unit in units}) == len(units)
