"""Writing one iteration: objects first, in any order, and the manifest last, in one conditional write.

    put(trajectories) put(diagnoses) put_folder(checkpoint) ... | commit = manifest, written if absent

Before the bar nothing happened: a killed process leaves objects that no manifest names, and the next attempt writes
over them. After it the iteration is whole. There is no state between.
"""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from roleagent.errors import CommitConflict, StorageError
from roleagent.storage.local_store import file_digest
from roleagent.storage.manifest import MANIFEST, RESERVED, Manifest, ObjectRecord, check_run_id, iteration_key
from roleagent.storage.object_store import ObjectExistsError, ObjectStore, check_key

if TYPE_CHECKING:
    from roleagent.storage.runs import Lease


class IterationWriter:
    """Collects the objects of one iteration and commits them.

    Args:
        store: where to write.
        run_id: the run; it should have been created.
        iteration: n; 0 is the state before training.
        lease: if given, a process that has lost the run to another one writes nothing more.
    """

    def __init__(self, store: ObjectStore, run_id: str, iteration: int, lease: Lease | None = None) -> None:
        if iteration < 0:
            raise StorageError(f"iteration {iteration} is negative")
        self.store = store
        self.run_id = check_run_id(run_id)
        self.iteration = iteration
        self._lease = lease
        self._records: dict[str, ObjectRecord] = {}
        self._guarded = False

    @property
    def records(self) -> tuple[ObjectRecord, ...]:
        """The objects of the coming commit, sorted by name."""
        return tuple(self._records[name] for name in sorted(self._records))

    def uri(self, name: str) -> str:
        """Return the address of one of the iteration's objects."""
        return self.store.uri(self._key(name))

    def put(self, name: str, data: bytes) -> ObjectRecord:
        """Write an object; writing a name again replaces it."""
        key = self._key(name)
        self._guard()
        self.store.put(key, data)
        return self.add(ObjectRecord(name, len(data), hashlib.sha256(data).hexdigest()))

    def put_file(self, name: str, path: Path) -> ObjectRecord:
        """Write an object from a file that nobody writes to meanwhile."""
        key = self._key(name)
        self._guard()
        try:
            size, sha256 = file_digest(path)
        except OSError as error:
            raise StorageError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
        self.store.put_file(key, path)
        return self.add(ObjectRecord(name, size, sha256))

    def put_folder(self, name: str, folder: Path) -> tuple[ObjectRecord, ...]:
        """Write all files of a folder below `name`; an empty or missing folder is an error."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        if not paths:
            raise StorageError(f"folder {folder} holds no file to store as '{name}'")
        return tuple(self.put_file(f"{name}/{path.relative_to(folder).as_posix()}", path) for path in paths)

    def add(self, record: ObjectRecord) -> ObjectRecord:
        """Take up an object that is stored already, for example by a task on another machine."""
        self._key(record.name)
        self._records[record.name] = record
        return record

    def adopt(self, name: str) -> ObjectRecord:
        """Take up an object that is stored already and whose digest is not known: it is read once."""
        size, sha256 = self.store.digest(self._key(name))
        return self.add(ObjectRecord(name, size, sha256))

    def commit(self, *, policy_version: int, seed: int) -> Manifest:
        """Write the manifest, if there is none; then the iteration is committed.

        A repeat with the same objects (a retried task, or a request whose answer was lost) returns the manifest that is
        there already.

        Raises:
            CommitConflict: the iteration was committed with other content, or the run was taken over.
            StorageError: an object is not there in its full size, the iteration before is not committed, or the
                store failed. In the last case the commit may or may not have happened; a repeat tells.
        """
        manifest = Manifest(
            run_id=self.run_id,
            iteration=self.iteration,
            policy_version=policy_version,
            seed=seed,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            objects=self.records,
        )
        if not manifest.objects:
            raise StorageError(f"iteration {self.iteration} of run {self.run_id} has no objects to commit")
        self._check_stored()
        if self._lease:
            self._lease.check()
        key = iteration_key(self.run_id, self.iteration, MANIFEST)
        try:
            self.store.put(key, manifest.to_json(), if_absent=True)
        except ObjectExistsError as error:
            present = Manifest.from_json(self.store.get(key), self.store.uri(key))
            if (present.objects, present.policy_version, present.seed) == (manifest.objects, policy_version, seed):
                return present
            raise self._conflict(present.created) from error
        return manifest

    def _key(self, name: str) -> str:
        if name in RESERVED:
            raise StorageError(f"'{name}' is written by the commit itself")
        return check_key(iteration_key(self.run_id, self.iteration, name))

    def _guard(self) -> None:
        """Refuse to write over a committed iteration: its objects are what the manifest's digests say."""
        if self._lease:
            self._lease.check()
        if not self._guarded:
            if self.store.exists(iteration_key(self.run_id, self.iteration, MANIFEST)):
                raise self._conflict("before")
            self._guarded = True

    def _check_stored(self) -> None:
        """One listing finds an upload that was lost or written over by another process."""
        folder = iteration_key(self.run_id, self.iteration)
        sizes = {item.key.removeprefix(f"{folder}/"): item.size for item in self.store.list(folder)}
        for record in self.records:
            size = sizes.get(record.name)
            if size != record.size:
                found = "it is missing" if size is None else f"{size} bytes were found"
                raise StorageError(
                    f"cannot commit iteration {self.iteration} of run {self.run_id}: {self.uri(record.name)} "
                    f"should have {record.size} bytes, but {found}; run the iteration again"
                )
        if self.iteration and not self.store.exists(iteration_key(self.run_id, self.iteration - 1, MANIFEST)):
            raise StorageError(
                f"cannot commit iteration {self.iteration} of run {self.run_id}: iteration {self.iteration - 1} is not "
                "committed; resume the run from its newest valid iteration"
            )

    def _conflict(self, when: str) -> CommitConflict:
        return CommitConflict(
            f"iteration {self.iteration} of run {self.run_id} was already committed ({when}) in {self.store.uri()}: "
            "another process trains this run; stop one of them, then resume"
        )
