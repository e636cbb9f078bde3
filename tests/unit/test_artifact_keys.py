"""Every name that a run may have makes a key that Prefect takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.client.schemas.actions import ArtifactCreate
from pydantic import ValidationError

from flows.keys import artifact_key
from roleagent.storage.manifest import check_run_id


@given(st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True).filter(lambda name: name[0].isalnum()))
def test_every_run_id_makes_a_key(run_id: str) -> None:
    key = artifact_key("report", check_run_id(run_id))
    assert ArtifactCreate(key=key, type="markdown", data="").key == key


def test_by_hand() -> None:
    assert artifact_key("progress", "sweeps-alpha_0p5-s0") == "progress-sweeps-alpha-0p5-s0"
    assert artifact_key("report", "My_Run") == "report-my-run"
    with pytest.raises(ValidationError):
        ArtifactCreate(key="report-My_Run", type="markdown", data="")
