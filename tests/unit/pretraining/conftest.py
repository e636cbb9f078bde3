"""The packaged tokenizer, shared by the tests of this folder."""

from __future__ import annotations

import pytest

from roleagent.policy.model import load_policy
from roleagent.pretraining.corpus import Encoder


@pytest.fixture(scope="session")
def quickstart_encoder() -> Encoder:
    return Encoder(load_policy("roleagent:quickstart", device="cpu").tokenizer)
