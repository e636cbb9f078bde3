"""The failure bank: every diagnosed failure of a run, searchable by what went wrong (the method, section 2).

A folder of the run with a Chroma database (`chroma_index`): one record a diagnosis, and one vector a pattern, that is
a distinct text, which is what is searched (`records`). The bank is an index: the diagnoses themselves are in the run's
commits, and `reconcile` brings the bank in line with them, whatever a crash has left of it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from roleagent.agent_in_world.chroma_index import PAGE, ChromaIndex, damage_errors, database_errors
from roleagent.agent_in_world.folder_lock import FolderLock
from roleagent.agent_in_world.records import BankRecord, Catalogue, Neighbour, ReconcileReport
from roleagent.errors import BankError, shortened
from roleagent.types import Diagnosis, DiagnosisStatus

if TYPE_CHECKING:
    from roleagent.agent_in_world.embedding import Embedder

FloatArray = NDArray[np.float32]

_FORMAT = 1


class FailureBank:
    """One run's failures. One object at a time may have the folder open; calls from several threads take turns."""

    def __init__(self, folder: Path | str, run_id: str, embedder: Embedder, *, fresh: bool = False) -> None:
        """Open or create the bank.

        Args:
            folder: belongs to the bank alone.
            run_id: the run whose failures it holds.
            embedder: its name and dimension are stored with the bank.
            fresh: set what is there aside and begin an empty bank, to be filled by `reconcile`.

        Raises:
            BankError: another process has it open, or it belongs to another run or embedding model. A bank that
                cannot be read does not raise here: `reconcile` rebuilds it, every other use raises.
        """
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._run_id = run_id
        self._embedder = embedder
        self._mutex = threading.RLock()
        self._unreadable = ""
        self._closed = False
        self._handles = _Handles(FolderLock(self._folder / "bank.lock", f"the failure bank in {self._folder}"))
        weakref.finalize(self, self._handles.release)
        try:
            if fresh:
                self._set_aside()
            self._connect()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> FailureBank:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the database and the folder; a second call does nothing."""
        with self._mutex:
            self._handles.release()
            self._closed = True

    # -- writing -------------------------------------------------------------------------------------------------

    def add(self, diagnoses: Iterable[Diagnosis]) -> int:
        """Store the valid ones among the diagnoses; return how many were new. Repeating it changes nothing.

        Raises:
            BankError: a diagnosis of another run, or the bank cannot be written.
        """
        with self._mutex:
            self._require_readable()
            return self._add(diagnoses)

    def mark_resolved(self, task_ids: Iterable[str], iteration: int) -> int:
        """Mark the failures of tasks that were mastered in `iteration`; later failures stay open.

        It is information for people: retrieval does not look at it. Returns the number of records that changed.
        """
        with self._mutex:
            self._require_readable()
            return self._resolve(dict.fromkeys(task_ids, iteration))

    def reconcile(
        self, commits: Iterable[tuple[int, Sequence[Diagnosis]]], resolved: Mapping[str, int] | None = None
    ) -> ReconcileReport:
        """Bring the bank in line with the committed diagnoses.

        What is missing is added, what was never committed is removed, what differs is replaced. A bank that cannot be
        read, or that has lost vectors, is set aside (`broken-<n>` beside it) and built anew.

        Args:
            commits: (iteration, diagnoses) of every commit, oldest first; read once.
            resolved: task -> last iteration in which it was mastered (`TaskDistribution.solved`).
        """
        committed: dict[str, Diagnosis] = {}
        for _, diagnoses in commits:
            committed.update({item.record_id: item for item in diagnoses if item.status is DiagnosisStatus.VALID})
        with self._mutex:
            moved_to = None
            rebuilt = bool(self._unreadable) or not self._index.vectors_intact(self._embedder.dimension)
            if rebuilt:
                self._handles.disconnect()
                moved_to = self._set_aside()
                self._connect()
                self._require_readable()
            extra = [record.record_id for record in self._catalogue if not _is_of(record, committed)]
            self._remove(extra)
            added = self._add(item for key, item in committed.items() if key not in self._catalogue)
            self._resolve(resolved or {})
            return ReconcileReport(len(self._catalogue), added, len(extra), rebuilt, moved_to)

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def embedder(self) -> Embedder:
        """The embedding model of this bank."""
        return self._embedder

    @property
    def count(self) -> int:
        """Number of records."""
        with self._mutex:
            self._require_readable()
            return len(self._catalogue)

    def records(self) -> list[BankRecord]:
        """Return all records, by iteration and id."""
        with self._mutex:
            self._require_readable()
            return sorted(self._catalogue, key=lambda record: (record.iteration, record.record_id))

    def get(self, record_id: str) -> BankRecord | None:
        """Return a record, None if there is none."""
        with self._mutex:
            self._require_readable()
            return self._catalogue.get(record_id)

    def stats(self) -> dict[str, Any]:
        """Return counts: records, patterns, tasks, resolved, and by failure type, iteration and environment."""
        with self._mutex:
            self._require_readable()
            return self._catalogue.stats()

    def neighbours(
        self,
        vectors: FloatArray,
        k: int,
        *,
        exclude: Sequence[Collection[str]] | None = None,
        floor: float = -1.0,
        salt: int = 0,
    ) -> list[list[Neighbour]]:
        """Return the k most similar tasks for each query vector, most similar first.

        Args:
            vectors: [n, D] unit vectors.
            k: tasks a query; a task appears once, with its most similar pattern.
            exclude: for each query the tasks that are not wanted.
            floor: smallest cosine similarity.
            salt: breaks ties among equally similar, equally recent failures.

        All queries are one call to Chroma; a second one is made only for those whose patterns did not have k tasks.
        """
        with self._mutex:
            self._require_readable()
            unwanted: Sequence[Collection[str]] = [()] * len(vectors) if exclude is None else exclude
            found: list[list[Neighbour]] = [[] for _ in vectors]
            waiting = list(range(len(vectors)))
            patterns = len(self._catalogue.patterns)
            width = min(patterns, max(16, 4 * k))
            while waiting and patterns:
                with self._failing("read"):
                    hits = self._index.query(np.asarray(vectors)[waiting], width)
                unfinished = []
                for index, row in zip(waiting, hits, strict=True):
                    found[index] = self._catalogue.tasks(row, k, exclude=unwanted[index], floor=floor, salt=salt)
                    exhausted = width == patterns or (row and row[-1][1] < floor)
                    if len(found[index]) < k and not exhausted:
                        unfinished.append(index)
                waiting = unfinished
                width = min(patterns, width * 4)
            return found

    def search(self, text: str, k: int = 10, floor: float = -1.0) -> list[Neighbour]:
        """Return the k tasks whose failures are most like a text, none less similar than `floor`."""
        return self.neighbours(self._embedder.embed([text]), k, floor=floor)[0]

    # -- inside --------------------------------------------------------------------------------------------------

    def _add(self, diagnoses: Iterable[Diagnosis]) -> int:
        records: dict[str, BankRecord] = {}
        for diagnosis in diagnoses:
            if diagnosis.status is not DiagnosisStatus.VALID:
                continue
            if diagnosis.run_id != self._run_id:
                raise BankError(f"a diagnosis of run {diagnosis.run_id} does not belong in the bank of {self._run_id}")
            if diagnosis.record_id not in self._catalogue:
                records[diagnosis.record_id] = BankRecord.of(diagnosis)
        new = list(records.values())
        for start in range(0, len(new), PAGE):
            self._write(new[start : start + PAGE])
        return len(new)

    def _write(self, records: Sequence[BankRecord]) -> None:
        vectors = self._embedder.embed([record.text for record in records])
        known = self._catalogue.patterns
        new_patterns = {record.pattern_id: row for row, record in enumerate(records) if record.pattern_id not in known}
        with self._failing("write"):
            self._index.write(records, vectors, new_patterns)
        self._catalogue.put(records)

    def _remove(self, record_ids: Sequence[str]) -> None:
        with self._failing("write"):
            for start in range(0, len(record_ids), PAGE):
                page = record_ids[start : start + PAGE]
                self._index.delete_records(page)
                orphans = self._catalogue.remove(page)
                if orphans:
                    self._index.delete_patterns(orphans)

    def _resolve(self, solved: Mapping[str, int]) -> int:
        changed = self._catalogue.resolvable(solved)
        with self._failing("write"):
            for start in range(0, len(changed), PAGE):
                page = changed[start : start + PAGE]
                self._index.rewrite(page)
                self._catalogue.put(page)
        return len(changed)

    def _connect(self) -> None:
        """Open the database and read the catalogue; a database that cannot be read is noted, not raised."""
        self._unreadable = ""
        self._catalogue = Catalogue()
        identity: dict[str, str | int] = {
            "format": _FORMAT,
            "run_id": self._run_id,
            "embedding_model": self._embedder.name,
            "dimension": self._embedder.dimension,
        }
        try:
            self._index = ChromaIndex(self._index_folder(), identity)
            self._handles.index = self._index
            self._catalogue.put(self._index.records())
            self._match_patterns()
        except damage_errors() as error:
            self._unreadable = shortened(f"{type(error).__name__}: {error}", 200)

    def _match_patterns(self) -> None:
        """Drop patterns that a kill left without records; a record without its pattern is damage."""
        stored, needed = self._index.pattern_ids(), set(self._catalogue.patterns)
        if stored - needed:
            self._index.delete_patterns(sorted(stored - needed))
        if needed - stored:
            raise KeyError(f"{len(needed - stored)} patterns are missing")

    def _set_aside(self) -> Path | None:
        """Move the database out of the way; return where it is, None if there was none."""
        index = self._index_folder()
        if not index.exists():
            return None
        target = self._folder / index.name.replace("index", "broken")
        index.rename(target)
        return target

    def _index_folder(self) -> Path:
        """Return the database's folder, `index-<n>`; every rebuilt one gets a number of its own.

        A path is not used again: see `ChromaIndex`.
        """
        numbers = {"index": 0, "broken": 0}
        for path in self._folder.iterdir():
            kind, _, number = path.name.partition("-")
            if kind in numbers and number.isdecimal():
                numbers[kind] = max(numbers[kind], int(number))
        return self._folder / f"index-{max(numbers['index'], numbers['broken'] + 1)}"

    def _require_readable(self) -> None:
        if self._closed:
            raise BankError(f"the failure bank in {self._folder} is closed; open it again")
        if self._unreadable:
            raise BankError(
                f"the failure bank in {self._folder} cannot be read ({self._unreadable}); "
                "build it anew with `roleagent bank rebuild`"
            )

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Turn the database's errors into a BankError."""
        try:
            yield
        except database_errors() as error:
            reason = shortened(str(error), 200)
            raise BankError(
                f"cannot {what} the failure bank in {self._folder}: {reason}; "
                "free disk space, or build it anew with `roleagent bank rebuild`"
            ) from error


@dataclass
class _Handles:
    """What the bank holds of the system; released when it is closed or forgotten."""

    lock: FolderLock
    index: ChromaIndex | None = None

    def disconnect(self) -> None:
        if self.index is not None:
            self.index.close()
            self.index = None

    def release(self) -> None:
        self.disconnect()
        self.lock.release()


def _is_of(record: BankRecord, committed: Mapping[str, Diagnosis]) -> bool:
    """Whether a record is exactly what the commits say, but for the mark `resolved`."""
    diagnosis = committed.get(record.record_id)
    return diagnosis is not None and replace(record, resolved=False) == BankRecord.of(diagnosis)
