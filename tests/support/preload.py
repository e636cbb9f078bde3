"""Imported once by the process from which children are forked: what takes half a minute to import on a busy machine.

Importing starts no threads and opens nothing, so a fork of it is safe. One thread in a child: several of them run
side by side, and a fixed number of threads makes sums come out the same.
"""

from __future__ import annotations

import importlib
import logging
import os

os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

_MODULES = (
    "torch",
    "accelerate",
    "chromadb",
    "mlflow",
    "mlflow.store.model_registry.sqlalchemy_store",
    "mlflow.store.tracking.sqlalchemy_store",
    "mlflow.tracing.client",
    "flows.train",
    "roleagent.agent_in_world.diagnosis",
    "roleagent.agent_in_world.embedding",
    "roleagent.agent_in_world.failure_bank",
    "roleagent.agent_in_world.retrieval",
    "roleagent.environments.household.household",
    "roleagent.learning.learner",
    "roleagent.policy.engines.llama_engine",
    "roleagent.quality.suites",
    "roleagent.rollout.loop",
    "roleagent.rollout.records",
    "roleagent.tracking.figures",
    "roleagent.tracking.tracker",
    "tests.support.faults",
    "tests.support.loop",
)

for _name in _MODULES:
    importlib.import_module(_name)

import torch  # noqa: E402  (imported above, in the order of the list)
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: E402

torch.set_num_threads(1)
logging.getLogger("great_expectations.data_context.types.base").setLevel(logging.WARNING)  # it sets INFO itself
WARM = (AutoModel, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM)  #: transformers imports these when asked
