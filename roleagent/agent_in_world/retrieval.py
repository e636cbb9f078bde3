"""From this iteration's failures to the tasks worth practising (the method, section 2, "Retrieval").

For each valid diagnosis the bank gives the `top_k` other tasks that failed most alike, above a similarity floor. A
task's relevance is its largest similarity to any of these diagnoses, so it lies in [0, 1] and does not depend on
how many episodes of one task happened to fail. Only tasks with failures are in the bank, so no other task ever
gets relevance. Optionally the model, as environment, chooses among the retrieved tasks (the paper's third prompt).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roleagent.agent_in_world.asking import ask
from roleagent.agent_in_world.parsing import parse_selection
from roleagent.agent_in_world.prompts import selection_prompt, shorten
from roleagent.agent_in_world.records import BankRecord, Neighbour
from roleagent.seeding import derive
from roleagent.types import Diagnosis, DiagnosisStatus

if TYPE_CHECKING:
    from roleagent.agent_in_world.failure_bank import FailureBank
    from roleagent.config.models import AgentInWorldConfig
    from roleagent.policy.engines.base import Engine
    from roleagent.policy.tokens import PolicyTokenizer

_SELECTION_TOKENS = 64  # a list of `top_k` numbers, with room for a code fence
_DESCRIPTION_CHARS = 300  # of one failure in the selection prompt


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What retrieval found.

    Metrics: `queries` (valid diagnoses), `neighbours` (tasks found for them, with repeats), `tasks` (different ones),
    `similarity_mean` and `similarity_max` (0 when nothing was found), `empty_share` (queries that found nothing). When
    the model selects also `selected_share` (of the tasks shown to it) and `selection_unparsed` (answers without a
    list: the similarity ranking is kept).
    """

    relevance: Mapping[str, float]  #: task -> largest similarity, in (0, 1]
    neighbours: Mapping[str, Sequence[Neighbour]]  #: record id of a diagnosis -> its tasks, most similar first
    metrics: Mapping[str, float]


def retrieve(
    bank: FailureBank,
    diagnoses: Sequence[Diagnosis],
    *,
    config: AgentInWorldConfig,
    seed: int,
    iteration: int,
    engine: Engine | None = None,
    tokenizer: PolicyTokenizer | None = None,
) -> Retrieval:
    """Retrieve the tasks whose failures resemble the diagnoses.

    Args:
        bank: what is compared with.
        diagnoses: of this iteration; quarantined ones are passed over.
        config: reads `top_k`, `similarity_floor`, `model_selects`, `temperature`.
        seed, iteration: name the random draws (ties, and the model's selection).
        engine, tokenizer: the policy; needed when `model_selects`.
    """
    valid = [item for item in diagnoses if item.status is DiagnosisStatus.VALID]
    queries = [BankRecord.of(item) for item in valid]
    found: list[list[Neighbour]] = []
    if queries:
        found = bank.neighbours(
            bank.embedder.embed([query.text for query in queries]),
            config.top_k,
            exclude=[{query.task_id} for query in queries],
            floor=config.similarity_floor,
            salt=derive(seed, iteration, "retrieval-ties"),
        )
    metrics: dict[str, float] = {"queries": float(len(queries))}
    if config.model_selects:
        if engine is None or tokenizer is None:
            raise ValueError("model_selects needs an engine and a tokenizer")
        found, selection = _select(engine, tokenizer, queries, found, config.temperature, seed, iteration)
        metrics |= selection
    relevance: dict[str, float] = {}
    for neighbours in found:
        for item in neighbours:
            if item.similarity > 0:
                relevance[item.task_id] = max(relevance.get(item.task_id, 0.0), item.similarity)
    similarities = [item.similarity for neighbours in found for item in neighbours]
    metrics |= {
        "neighbours": float(len(similarities)),
        "tasks": float(len(relevance)),
        "similarity_mean": sum(similarities) / len(similarities) if similarities else 0.0,
        "similarity_max": max(similarities, default=0.0),
        "empty_share": sum(not neighbours for neighbours in found) / len(found) if found else 0.0,
    }
    by_record = {query.record_id: neighbours for query, neighbours in zip(queries, found, strict=True)}
    return Retrieval(dict(sorted(relevance.items())), by_record, metrics)


def _select(
    engine: Engine,
    tokenizer: PolicyTokenizer,
    queries: Sequence[BankRecord],
    found: Sequence[list[Neighbour]],
    temperature: float,
    seed: int,
    iteration: int,
) -> tuple[list[list[Neighbour]], dict[str, float]]:
    """Let the model choose among the neighbours of each query, all in one batch."""
    asked = [index for index, neighbours in enumerate(found) if neighbours]
    prompts = [
        tokenizer.opening(
            None, selection_prompt(_describe(queries[index]), [_describe(item.record) for item in found[index]])
        )
        for index in asked
    ]
    answers = ask(
        engine,
        tokenizer,
        prompts,
        seeds=[derive(seed, iteration, "selection", queries[index].record_id) for index in asked],
        max_tokens=_SELECTION_TOKENS,
        temperature=temperature,
    )
    chosen = list(found)
    shown = kept = unparsed = 0
    for index, answer in zip(asked, answers, strict=True):
        numbers = parse_selection(answer.text, len(found[index]))
        if numbers is None:
            unparsed += 1
        else:
            chosen[index] = [found[index][number - 1] for number in numbers]
        shown += len(found[index])
        kept += len(chosen[index])
    metrics = {"selected_share": kept / shown if shown else 0.0, "selection_unparsed": float(unparsed)}
    return chosen, metrics


def _describe(record: BankRecord) -> str:
    return shorten(f"{record.failure_type}. {record.root_cause}", _DESCRIPTION_CHARS)
