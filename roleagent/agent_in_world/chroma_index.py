"""The failure bank's Chroma database: two collections in cosine space, `failures` and `patterns`.

Vectors are always our own (`embedding_function=None`). Nothing is sent anywhere, nothing is logged.

Simplified: Chroma would write its nearest-neighbour graph to files of its own every thousand vectors. Those are what a
kill or a restart damages (silently: it then finds fewer neighbours), and reading damaged ones can end the
process. Here it never writes them: SQLite, which survives a kill, holds everything, and the graph is built in memory
when the database is opened. The price is a write that takes longer the more records there are, since Chroma reads its
log each time: 16 records take about 25 ms of CPU at 1,000 records and 70 ms at 4,000.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from roleagent.agent_in_world.records import BankRecord
from roleagent.errors import BankError

if TYPE_CHECKING:
    from chromadb.api.client import Client
    from chromadb.api.models.Collection import Collection

FloatArray = NDArray[np.float32]

PAGE = 256  #: records written or read in one call
_NO_GRAPH_FILES = {"space": "cosine", "sync_threshold": 1_000_000_000}
#: `patterns` is searched; measured: no neighbour among the first 40 is missed in 4,000 vectors.
_EXACT = {**_NO_GRAPH_FILES, "ef_construction": 200, "ef_search": 512, "max_neighbors": 32}
#: `failures` is looked up by id, so its graph is kept as cheap as can be.
_CHEAP = {**_NO_GRAPH_FILES, "ef_construction": 8, "ef_search": 100, "max_neighbors": 4}


def database_errors() -> tuple[type[Exception], ...]:
    """What Chroma raises when it cannot do what it is asked."""
    from chromadb.errors import ChromaError

    return (ChromaError, OSError, ValueError, RuntimeError)


def damage_errors() -> tuple[type[Exception], ...]:
    """What reading a damaged database raises: also whatever comes of records without their fields."""
    return (*database_errors(), KeyError, TypeError, AttributeError)


class ChromaIndex:
    """An open database. Its methods raise `database_errors()`; reading a damaged one, `damage_errors()`."""

    def __init__(self, path: Path, identity: Mapping[str, str | int]) -> None:
        """Open or create the database.

        Args:
            path: its folder. After a failed opening, Chroma keeps a half-open system under this path for as long as
                the process lives; do not use the path again.
            identity: what a new database is marked with, and an old one must be marked with.

        Raises:
            BankError: the mark is another one.
        """
        os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")
        logging.getLogger("chromadb").setLevel(logging.ERROR)
        import chromadb
        from chromadb.config import Settings

        self._path = path
        settings = Settings(anonymized_telemetry=False)
        self._client = cast("Client", chromadb.PersistentClient(path=str(path), settings=settings))
        self._open = True
        try:
            self._failures = self._collection("failures", identity, _CHEAP)
            self._patterns = self._collection("patterns", identity, _EXACT)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the database; a second call does nothing."""
        if self._open:
            self._open = False
            self._client.close()

    def write(self, records: Sequence[BankRecord], vectors: FloatArray, new_patterns: Mapping[str, int]) -> None:
        """Store records with their vectors, [n, D], and the patterns that are new, by their row among the records.

        Patterns first: a kill in between leaves a pattern without records, never a record that cannot be found.
        """
        if new_patterns:
            rows = list(new_patterns.values())
            self._patterns.upsert(
                ids=list(new_patterns), embeddings=vectors[rows], documents=[records[row].text for row in rows]
            )
        self._failures.upsert(
            ids=[record.record_id for record in records],
            embeddings=vectors,
            metadatas=[record.metadata() for record in records],
        )

    def rewrite(self, records: Sequence[BankRecord]) -> None:
        """Replace the fields of stored records."""
        self._failures.update(
            ids=[record.record_id for record in records], metadatas=[record.metadata() for record in records]
        )

    def delete_records(self, record_ids: Sequence[str]) -> None:
        """Remove records."""
        self._failures.delete(ids=list(record_ids))

    def delete_patterns(self, pattern_ids: Sequence[str]) -> None:
        """Remove patterns."""
        self._patterns.delete(ids=list(pattern_ids))

    def records(self) -> Iterator[BankRecord]:
        """Yield all records."""
        for page in _pages(self._failures, "metadatas"):
            for record_id, metadata in zip(page["ids"], page["metadatas"], strict=True):
                yield BankRecord.from_metadata(record_id, metadata)

    def pattern_ids(self) -> set[str]:
        """Return the ids of all patterns."""
        return set(self._patterns.get(include=[])["ids"])

    def query(self, vectors: FloatArray, width: int) -> list[list[tuple[str, float]]]:
        """Return the `width` nearest patterns of each vector as (id, cosine similarity), in one call."""
        answer = self._patterns.query(query_embeddings=vectors, n_results=width, include=["distances"])
        return [
            [(pattern, min(max(1.0 - distance, -1.0), 1.0)) for pattern, distance in zip(ids, row, strict=True)]
            for ids, row in zip(answer["ids"], answer["distances"] or [], strict=True)
        ]

    def vectors_intact(self, dimension: int) -> bool:
        """Whether every vector can be read and is a unit vector: a lost graph answers queries without an error."""
        try:
            for collection in (self._failures, self._patterns):
                for page in _pages(collection, "embeddings"):
                    vectors = np.asarray(page["embeddings"])
                    if vectors.shape != (len(page["ids"]), dimension):
                        return False
                    if not np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-3):
                        return False
        except damage_errors():
            return False
        return True

    def _collection(self, name: str, identity: Mapping[str, str | int], graph: Mapping[str, object]) -> Collection:
        from chromadb.errors import NotFoundError

        try:
            collection = self._client.get_collection(name, embedding_function=None)
        except NotFoundError:
            return self._client.create_collection(
                name, embedding_function=None, metadata=dict(identity), configuration=cast("Any", {"hnsw": graph})
            )
        found = collection.metadata or {}
        for key, value in identity.items():
            if found.get(key) != value:
                raise BankError(
                    f"the failure bank in {self._path.parent} has {key} {found.get(key)!r}, not {value!r}; "
                    "use the one that it was built with, or build it anew with `roleagent bank rebuild`"
                )
        return collection


def _pages(collection: Collection, field: str) -> Iterator[dict[str, Any]]:
    """Yield the whole collection with one of its fields."""
    offset = 0
    while True:
        page = cast("dict[str, Any]", collection.get(include=cast("Any", [field]), limit=4 * PAGE, offset=offset))
        size = len(page["ids"])
        if size:
            yield page
        if size < 4 * PAGE:
            return
        offset += size
