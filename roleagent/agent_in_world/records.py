"""What the failure bank knows, apart from vectors: its records, and which failures share a pattern.

A pattern is a distinct text "failure type: retrieval query". Failures repeat: thousands of records can share a few
dozen patterns. Nearest-neighbour graphs lose members of large sets of equal vectors, so patterns are what is
searched, and the tasks of a pattern are looked up here. Pure Python.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roleagent.json_text import read_json_text
from roleagent.seeding import derive
from roleagent.types import Diagnosis

_KEYS = ("environment", "task_id", "failure_type", "iteration", "policy_version", "critical_step", "resolved")
_DETAILS = ("trajectory_id", "root_cause", "lesson", "retrieval_query")


@dataclass(frozen=True, slots=True)
class BankRecord:
    """One failure in the bank; the fields are those of the `Diagnosis`, and whether the task was mastered since."""

    record_id: str
    trajectory_id: str
    task_id: str
    environment: str
    failure_type: str
    root_cause: str
    critical_step: int
    lesson: str
    retrieval_query: str
    iteration: int
    policy_version: int
    resolved: bool = False

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> BankRecord:
        """Return the record of a valid diagnosis."""
        return cls(
            record_id=diagnosis.record_id,
            trajectory_id=diagnosis.trajectory_id,
            task_id=diagnosis.task_id,
            environment=diagnosis.environment,
            failure_type=diagnosis.failure_type,
            root_cause=diagnosis.root_cause,
            critical_step=diagnosis.critical_step,
            lesson=diagnosis.lesson,
            retrieval_query=diagnosis.retrieval_query,
            iteration=diagnosis.iteration,
            policy_version=diagnosis.policy_version,
        )

    @classmethod
    def from_metadata(cls, record_id: str, metadata: Mapping[str, Any]) -> BankRecord:
        """Return the record stored as `metadata`; raises KeyError or ValueError when it is damaged."""
        details = read_json_text(metadata["details"])
        return cls(
            record_id=record_id,
            **{name: metadata[name] for name in _KEYS},
            **{name: details[name] for name in _DETAILS},
        )

    def metadata(self) -> dict[str, str | int | bool]:
        """Return all fields but the id as the flat mapping that the store keeps.

        What one filters by are keys of their own; the rest is one JSON text, since a write to the store takes time in
        proportion to the number of keys.
        """
        keys: dict[str, str | int | bool] = {name: getattr(self, name) for name in _KEYS}
        keys["details"] = json.dumps({name: getattr(self, name) for name in _DETAILS})
        return keys

    @property
    def text(self) -> str:
        """The text that is embedded."""
        return pattern_text(self.failure_type, self.retrieval_query)

    @property
    def pattern_id(self) -> str:
        """Content hash of the text."""
        return hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()


def pattern_text(failure_type: str, retrieval_query: str) -> str:
    """Return what is embedded of a failure: type and query; the query alone if it begins with the type."""
    if retrieval_query.casefold().startswith(failure_type):
        return retrieval_query
    return f"{failure_type}: {retrieval_query}"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A task whose failure resembles the one asked for, with its most recent record of that pattern."""

    task_id: str
    similarity: float  #: cosine, in [-1, 1]
    record: BankRecord


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """What had to be done to bring a bank in line with the commits."""

    records: int  #: records now in the bank
    added: int  #: committed, but missing
    removed: int  #: in the bank, but never committed
    rebuilt: bool  #: the bank was unreadable or had lost vectors, and was made anew
    moved_to: Path | None = None  #: where the unreadable one lies

    @property
    def changed(self) -> bool:
        """Whether the bank and the commits differed."""
        return bool(self.added or self.removed or self.rebuilt)


class Catalogue:
    """The bank's records by id and by pattern."""

    def __init__(self) -> None:
        self._records: dict[str, BankRecord] = {}
        self._patterns: dict[str, dict[str, str]] = {}  # pattern -> record ids, in order of arrival

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, record_id: str) -> bool:
        return record_id in self._records

    def __iter__(self) -> Iterator[BankRecord]:
        return iter(self._records.values())

    @property
    def patterns(self) -> Collection[str]:
        """Ids of the patterns that some record has."""
        return self._patterns.keys()

    def get(self, record_id: str) -> BankRecord | None:
        """Return a record, None if there is none."""
        return self._records.get(record_id)

    def put(self, records: Iterable[BankRecord]) -> None:
        """Add or replace records."""
        for record in records:
            self.remove([record.record_id])
            self._records[record.record_id] = record
            self._patterns.setdefault(record.pattern_id, {})[record.record_id] = record.task_id

    def remove(self, record_ids: Iterable[str]) -> list[str]:
        """Remove records; return the patterns that nothing has any more."""
        orphans = []
        for record_id in record_ids:
            record = self._records.pop(record_id, None)
            if record is None:
                continue
            members = self._patterns[record.pattern_id]
            del members[record_id]
            if not members:
                del self._patterns[record.pattern_id]
                orphans.append(record.pattern_id)
        return orphans

    def resolvable(self, solved: Mapping[str, int]) -> list[BankRecord]:
        """Return, marked as resolved, the open records of tasks mastered in or after the record's iteration."""
        return [
            replace(record, resolved=True)
            for record in self
            if not record.resolved and record.iteration <= solved.get(record.task_id, -1)
        ]

    def latest(self, pattern_id: str, exclude: Collection[str], salt: int) -> list[BankRecord]:
        """Return one record, the latest, of every task that has this pattern.

        They are equally similar to whatever is asked. Recent failures come first, since they are what the present
        policy still does; ties are broken by a hash with `salt`, so that no task is favoured by its name.
        """
        newest: dict[str, BankRecord] = {}
        for record_id, task_id in self._patterns.get(pattern_id, {}).items():
            record = self._records[record_id]
            known = newest.get(task_id)
            if task_id not in exclude and (known is None or _age_key(record) > _age_key(known)):
                newest[task_id] = record
        return sorted(newest.values(), key=lambda record: (-record.iteration, derive(salt, record.task_id)))

    def tasks(
        self, hits: Sequence[tuple[str, float]], k: int, *, exclude: Collection[str], floor: float, salt: int
    ) -> list[Neighbour]:
        """Return the k most similar tasks, given (pattern, similarity) of the patterns found; none below `floor`."""
        found: dict[str, Neighbour] = {}
        for pattern, similarity in sorted(hits, key=lambda hit: (-hit[1], hit[0])):
            if similarity < floor or len(found) >= k:
                break
            for record in self.latest(pattern, exclude, salt):
                if len(found) < k and record.task_id not in found:
                    found[record.task_id] = Neighbour(record.task_id, similarity, record)
        return list(found.values())

    def stats(self) -> dict[str, Any]:
        """Return counts: records, patterns, tasks, resolved, and by failure type, iteration and environment."""
        types = Counter(record.failure_type for record in self)
        return {
            "records": len(self),
            "patterns": len(self._patterns),
            "tasks": len({record.task_id for record in self}),
            "resolved": sum(record.resolved for record in self),
            "by_failure_type": dict(sorted(types.items(), key=lambda item: (-item[1], item[0]))),
            "by_iteration": dict(sorted(Counter(record.iteration for record in self).items())),
            "by_environment": dict(sorted(Counter(record.environment for record in self).items())),
        }


def _age_key(record: BankRecord) -> tuple[int, str]:
    return record.iteration, record.record_id
