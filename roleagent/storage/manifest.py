"""The manifest of an iteration: what was committed, and where everything of a run lies.

runs/<run_id>/config.json                       the run exists
runs/<run_id>/lease.json                        which process trains it
runs/<run_id>/status.json, summary.json         for people; never read to resume
runs/<run_id>/iterations/<n>/...                objects of iteration n; 0 is the state before training
runs/<run_id>/iterations/<n>/manifest.json      names, sizes and SHA-256 of the others: the commit
runs/<run_id>/iterations/<n>/pruned.json        objects that retention has removed since
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from roleagent.errors import StorageError
from roleagent.json_text import read_json_text
from roleagent.storage.object_store import check_key

MANIFEST = "manifest.json"
PRUNED = "pruned.json"
CHECKPOINT = "checkpoint"
RESERVED = frozenset({MANIFEST, PRUNED})
_FORMAT = 1
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """One committed object: its name inside the iteration, size in bytes and SHA-256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one commit holds. Random draws are functions of (seed, iteration, ...), so the seed is the rng's state."""

    run_id: str
    iteration: int
    policy_version: int
    seed: int
    created: str  #: UTC, ISO 8601
    objects: tuple[ObjectRecord, ...]  #: sorted by name

    def record(self, name: str) -> ObjectRecord:
        """Return the record of an object; raise `StorageError` if it is not part of the commit."""
        for record in self.objects:
            if record.name == name:
                return record
        raise StorageError(f"iteration {self.iteration} of run {self.run_id} has no object '{name}'")

    def checkpoint(self) -> tuple[ObjectRecord, ...]:
        """Return the records of the checkpoint's files."""
        return tuple(record for record in self.objects if record.name.startswith(f"{CHECKPOINT}/"))

    def to_json(self) -> bytes:
        """Return the stored form; equal manifests give equal bytes."""
        return (json.dumps({"format": _FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n").encode()

    @staticmethod
    def from_json(data: bytes, where: str = MANIFEST) -> Manifest:
        """Read the stored form.

        Raises:
            StorageError: it is not a manifest of this format, or a name in it is not a safe key.
        """
        try:
            values = read_json_text(data)
            if values["format"] != _FORMAT:
                raise StorageError(f"{where} has format {values['format']!r}; this version reads format {_FORMAT}")
            manifest = Manifest(
                run_id=check_run_id(values["run_id"]),
                iteration=_count(values["iteration"]),
                policy_version=_count(values["policy_version"]),
                seed=_count(values["seed"]),
                created=str(values["created"]),
                objects=tuple(_record(item) for item in values["objects"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{where} is damaged: {type(error).__name__}: {' '.join(str(error).split())}") from error
        return manifest


def check_run_id(run_id: str) -> str:
    """Return the run id if it can be one segment of a key, else raise `StorageError`."""
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise StorageError(f"run id {str(run_id)[:140]!r} is not allowed: use letters, digits, _ and -, at most 128")
    return run_id


def run_key(run_id: str, name: str = "") -> str:
    """Return the key of a run's folder, or of an object in it."""
    return f"runs/{check_run_id(run_id)}" + (f"/{name}" if name else "")


def iteration_key(run_id: str, iteration: int, name: str = "") -> str:
    """Return the key of an iteration's folder, or of an object in it."""
    return run_key(run_id, f"iterations/{iteration}") + (f"/{name}" if name else "")


def parse_pruned(data: bytes) -> frozenset[str]:
    """Return the names in a `pruned.json`; a damaged one counts as empty, which makes verification stricter."""
    try:
        names = read_json_text(data)["objects"]
        return frozenset(name for name in names if isinstance(name, str))
    except (ValueError, KeyError, TypeError):
        return frozenset()


def _record(item: dict[str, Any]) -> ObjectRecord:
    if not _SHA256.fullmatch(item["sha256"]):
        raise ValueError("a sha256 is malformed")
    return ObjectRecord(name=check_key(item["name"]), size=_count(item["size"]), sha256=item["sha256"])


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
