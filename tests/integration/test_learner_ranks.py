"""Two ranks compute the update of one, sharded (FSDP2) or not.

Real processes that talk over gloo, started as a launcher starts them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from learner_case import RANK_CASES, run_case
from safetensors.torch import load_file

SCRIPT = Path(__file__).with_name("learner_case.py")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", SCRIPT, output]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return output


@pytest.mark.slow
@pytest.mark.parametrize("case", [*RANK_CASES, "sharded"])
def test_two_ranks_equal_one(two_ranks, tmp_path, case):
    expected = run_case("recorded" if case == "sharded" else case, tmp_path)
    weights = load_file(two_ranks / case / "model.safetensors")
    one_rank = load_file(tmp_path / "model.safetensors")
    assert weights.keys() == one_rank.keys()
    for name, weight in one_rank.items():
        # 0.03 of a step: AdamW divides by the gradient's size, so rounding shows where that is nearly zero.
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=3e-5)
    moments = load_file(two_ranks / case / "optimizer.safetensors")
    for name, moment in load_file(tmp_path / "optimizer.safetensors").items():
        torch.testing.assert_close(moments[name], moment, rtol=1e-3, atol=1e-6)
    metrics = json.loads((two_ranks / case / "metrics.json").read_text(encoding="utf-8"))
    # Half a minibatch has no gradient in common: the noise scale is measured by a single process alone.
    expected = {name: value for name, value in expected.items() if not name.startswith("gradient_noise/")}
    assert metrics.keys() == expected.keys()
    for name in expected.keys() - {"update/seconds", "update/tokens_per_second", "update/padding_share"}:
        assert metrics[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
