"""The failure bank: every diagnosed failure of a run, searchable by what went wrong (the method, section 2).

A Chroma database in a folder of the run, with two collections in cosine space: `failures`, one record a diagnosis,
and `patterns`, one vector a distinct text, which is what is searched (see `records`). Vectors always come from our
own embedder. The bank is an index: the diagnoses themselves are in the run's commits, and `reconcile` brings the bank
in line with them, whatever a crash has left of it.

Simplified: Chroma would write its nearest-neighbour graph to files of its own every thousand vectors. Those are what a
kill or a restart damages (silently: it then finds fewer neighbours), and reading damaged ones can end the
process. Here it never writes them: SQLite, which survives a kill, holds everything, and the graph is built in memory
when the bank is opened (about 1 s for 1,000 records).
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from roleagent.agent_in_world.folder_lock import FolderLock
from roleagent.agent_in_world.records import BankRecord, Catalogue, Neighbour, ReconcileReport
from roleagent.errors import BankError
from roleagent.types import Diagnosis, DiagnosisStatus

if TYPE_CHECKING:
    from chromadb.api.client import Client
    from chromadb.api.models.Collection import Collection as ChromaCollection

    from roleagent.agent_in_world.embedding import Embedder

FloatArray = NDArray[np.float32]

_FORMAT = 1
_PAGE = 256  # records written or read in one call
_HNSW = {
    "space": "cosine",
    "ef_construction": 200,
    "ef_search": 512,  # measured: no neighbour among the first 40 is missed in 4,000 vectors
    "max_neighbors": 32,
    "sync_threshold": 1_000_000_000,  # never write graph files; see the module's docstring
}


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
        self._handles = _Handles(FolderLock(self._folder / "bank.lock", f"the failure bank in {self._folder}"))
        weakref.finalize(self, self._handles.release)
        try:
            if fresh:
                self._set_aside()
            self._connect()
        except BankError:
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
            self._unreadable = self._unreadable or "it is closed"

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

        What is missing is added, what was never committed is removed. A bank that cannot be read, or that has lost
        vectors, is set aside (`broken-<n>` beside it) and built anew.

        Args:
            commits: (iteration, diagnoses) of every commit, oldest first; read once.
            resolved: task -> last iteration in which it was mastered (`TaskDistribution.solved`).
        """
        committed: dict[str, Diagnosis] = {}
        for _, diagnoses in commits:
            committed.update({item.record_id: item for item in diagnoses if item.status is DiagnosisStatus.VALID})
        with self._mutex:
            moved_to = None
            rebuilt = bool(self._unreadable) or not self._vectors_intact()
            if rebuilt:
                self._handles.disconnect()
                moved_to = self._set_aside()
                self._connect()
                self._require_readable()
            extra = [record.record_id for record in self._catalogue if record.record_id not in committed]
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
                hits = self._query(np.asarray(vectors)[waiting], width)
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
        for start in range(0, len(new), _PAGE):
            self._write(new[start : start + _PAGE])
        return len(new)

    def _write(self, records: Sequence[BankRecord]) -> None:
        vectors = self._embedder.embed([record.text for record in records])
        fresh = {
            record.pattern_id: (row, record.text)
            for row, record in enumerate(records)
            if record.pattern_id not in self._catalogue.patterns
        }
        with self._failing("write"):
            # Patterns first: a kill in between leaves a pattern without records, which `_load` removes, and never a
            # record that cannot be found.
            if fresh:
                self._patterns.upsert(
                    ids=list(fresh),
                    embeddings=vectors[[row for row, _ in fresh.values()]],
                    documents=[text for _, text in fresh.values()],
                )
            self._failures.upsert(
                ids=[record.record_id for record in records],
                embeddings=vectors,
                documents=[record.text for record in records],
                metadatas=[record.metadata() for record in records],
            )
        self._catalogue.put(records)

    def _remove(self, record_ids: Sequence[str]) -> None:
        with self._failing("write"):
            for start in range(0, len(record_ids), _PAGE):
                page = list(record_ids[start : start + _PAGE])
                self._failures.delete(ids=page)
                orphans = self._catalogue.remove(page)
                if orphans:
                    self._patterns.delete(ids=orphans)

    def _resolve(self, solved: Mapping[str, int]) -> int:
        changed = self._catalogue.resolvable(solved)
        with self._failing("write"):
            for start in range(0, len(changed), _PAGE):
                page = changed[start : start + _PAGE]
                self._failures.update(
                    ids=[record.record_id for record in page], metadatas=[{"resolved": True} for _ in page]
                )
                self._catalogue.put(page)
        return len(changed)

    def _query(self, vectors: FloatArray, width: int) -> list[list[tuple[str, float]]]:
        """Return (pattern, similarity), most similar first, for each vector."""
        with self._failing("read"):
            answer = self._patterns.query(query_embeddings=vectors, n_results=width, include=["distances"])
        distances = answer["distances"] or []
        return [
            [(pattern, min(max(1.0 - distance, -1.0), 1.0)) for pattern, distance in zip(ids, row, strict=True)]
            for ids, row in zip(answer["ids"], distances, strict=True)
        ]

    def _connect(self) -> None:
        """Open the database and read the catalogue; a database that cannot be read is noted, not raised."""
        os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")
        logging.getLogger("chromadb").setLevel(logging.ERROR)
        import chromadb
        from chromadb.config import Settings

        self._unreadable = ""
        self._catalogue = Catalogue()
        index = self._index()
        try:
            settings = Settings(anonymized_telemetry=False)
            client = cast("Client", chromadb.PersistentClient(path=str(index), settings=settings))
            self._handles.client = client
            self._failures = self._collection(client, "failures")
            self._patterns = self._collection(client, "patterns")
            self._load()
        except BankError:
            raise
        except _opening_errors() as error:
            self._unreadable = " ".join(f"{type(error).__name__}: {error}".split())[:200]

    def _collection(self, client: Client, name: str) -> ChromaCollection:
        from chromadb.errors import NotFoundError

        wanted = {
            "format": _FORMAT,
            "run_id": self._run_id,
            "embedding_model": self._embedder.name,
            "dimension": self._embedder.dimension,
        }
        try:
            collection = client.get_collection(name, embedding_function=None)
        except NotFoundError:
            return client.create_collection(
                name, embedding_function=None, metadata=wanted, configuration=cast("Any", {"hnsw": _HNSW})
            )
        found = collection.metadata or {}
        for key, value in wanted.items():
            if found.get(key) != value:
                raise BankError(
                    f"the failure bank in {self._folder} has {key} {found.get(key)!r}, not {value!r}; "
                    "use the one that it was built with, or build it anew with `roleagent bank rebuild`"
                )
        return collection

    def _load(self) -> None:
        offset = 0
        while True:
            page = self._failures.get(include=["metadatas"], limit=4 * _PAGE, offset=offset)
            metadatas = page["metadatas"] or []
            self._catalogue.put(
                BankRecord.from_metadata(key, metadata) for key, metadata in zip(page["ids"], metadatas, strict=True)
            )
            offset += len(page["ids"])
            if len(page["ids"]) < 4 * _PAGE:
                break
        known = set(self._patterns.get(include=[])["ids"])
        orphans = sorted(known - set(self._catalogue.patterns))
        if orphans:
            self._patterns.delete(ids=orphans)
        missing = len(set(self._catalogue.patterns) - known)
        if missing:
            raise KeyError(f"{missing} patterns are missing")

    def _vectors_intact(self) -> bool:
        """Whether every vector can be read and is a unit vector: a lost graph answers queries without an error."""
        try:
            for collection in (self._failures, self._patterns):
                total = collection.count()
                for offset in range(0, total, 4 * _PAGE):
                    page = collection.get(include=["embeddings"], limit=4 * _PAGE, offset=offset)
                    vectors = np.asarray(page["embeddings"])
                    if vectors.shape != (len(page["ids"]), self._embedder.dimension):
                        return False
                    if not np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-3):
                        return False
        except _opening_errors():
            return False
        return True

    def _set_aside(self) -> Path | None:
        """Move the database out of the way; return where it is, None if there was none."""
        index = self._index()
        if not index.exists():
            return None
        target = self._folder / index.name.replace("index", "broken")
        index.rename(target)
        return target

    def _index(self) -> Path:
        """Return the database's folder, `index-<n>`; every rebuilt one gets a number of its own.

        Chroma keeps a half-open system under the path of a database that it failed to open, for as long as the
        process lives, so a path is not used again.
        """
        numbers = {"index": 0, "broken": 0}
        for path in self._folder.iterdir():
            kind, _, number = path.name.partition("-")
            if kind in numbers and number.isdecimal():
                numbers[kind] = max(numbers[kind], int(number))
        return self._folder / f"index-{max(numbers['index'], numbers['broken'] + 1)}"

    def _require_readable(self) -> None:
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
        except _database_errors() as error:
            reason = " ".join(str(error).split())[:200]
            raise BankError(
                f"cannot {what} the failure bank in {self._folder}: {reason}; "
                "free disk space, or build it anew with `roleagent bank rebuild`"
            ) from error


@dataclass
class _Handles:
    """What the bank holds of the system; released when it is closed or forgotten."""

    lock: FolderLock
    client: Client | None = None

    def disconnect(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None

    def release(self) -> None:
        self.disconnect()
        self.lock.release()


def _database_errors() -> tuple[type[Exception], ...]:
    from chromadb.errors import ChromaError

    return (ChromaError, OSError, ValueError, RuntimeError)


def _opening_errors() -> tuple[type[Exception], ...]:
    """What a damaged database raises when it is read: also whatever comes of records without their fields."""
    return (*_database_errors(), KeyError, TypeError, AttributeError)
