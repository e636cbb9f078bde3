"""The pretraining command: what it tells, and what it refuses."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from roleagent.console.pretrain import run_pretraining
from roleagent.errors import ConfigError
from roleagent.pretraining import train as pretraining


def told(output: Path, **options: Any) -> list[str]:
    file = io.StringIO()
    run_pretraining(
        Console(file=file, width=100), output, **{"recipe": "quickstart", "steps": None, "seed": 0, **options}
    )
    return file.getvalue().splitlines()


def test_progress_is_told_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def fake(settings: Any, folder: Path, report: Any, limit: int | None) -> None:
        seen.update(seed=settings.seed, folder=folder, limit=limit)
        report({"step": 20, "loss": 7.5, "tokens": 80_000, "seconds": 10.0})
        report({"step": 40, "loss": 6.25, "tokens": 160_000, "seconds": 30.0})

    monkeypatch.setattr(pretraining, "pretrain", fake)
    assert told(tmp_path / "out", steps=100, seed=3) == [
        "step     20/100  loss 7.5000  tokens 0.08 M",  # no pace is known yet
        "step     40/100  loss 6.2500  tokens 0.16 M  left 1:00",  # 20 steps in 20 s: 60 are left
        f"The policy is in {tmp_path / 'out' / 'policy'}",
    ]
    assert seen == {"seed": 3, "folder": tmp_path / "out", "limit": 100}
    rows = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["loss"] for row in rows] == [7.5, 6.25]


def test_an_unknown_recipe_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown recipe 'alf': choose quickstart, alfworld, foresight"):
        told(tmp_path / "out", recipe="alf")


def test_an_output_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot make the folder .*file: .*; give another --output"):
        told(tmp_path / "file")


@pytest.mark.parametrize("state", ["", "{", "[]", "{}"])
def test_a_damaged_checkpoint_is_told(tmp_path: Path, state: str) -> None:
    (tmp_path / "state.json").write_text(state, encoding="utf-8")
    with pytest.raises(ConfigError, match="is damaged; remove"):
        pretraining._load(tmp_path, pretraining.PretrainSettings(stages=()), None, [])
