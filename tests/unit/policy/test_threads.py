"""Bounding the spinning of threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from roleagent.policy.threads import limit_spinning


@pytest.mark.parametrize("chosen", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}])
def test_the_users_choice_stays(chosen: dict[str, str]) -> None:
    environ = dict(chosen)
    limit_spinning(environ)
    assert environ == chosen


def test_default() -> None:
    environ: dict[str, str] = {}
    limit_spinning(environ)
    assert environ == {"GOMP_SPINCOUNT": "2000"}


def test_says_whether_it_came_in_time() -> None:
    code = "from roleagent.policy.threads import limit_spinning as f; a = f(); import torch; print(a, f())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
