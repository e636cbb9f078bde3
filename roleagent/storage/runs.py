"""Reading runs: which iterations are committed, which is the newest valid one, and what it holds."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from roleagent.errors import CommitConflict, StorageError
from roleagent.json_text import read_json_text
from roleagent.storage.local_store import file_digest
from roleagent.storage.manifest import (
    CHECKPOINT,
    MANIFEST,
    PRUNED,
    Manifest,
    ObjectRecord,
    check_run_id,
    iteration_key,
    parse_pruned,
    run_key,
)
from roleagent.storage.object_store import MissingObjectError, ObjectExistsError, ObjectStore, check_key

_LOG = logging.getLogger(__name__)
_CONFIG = "config.json"
_LEASE = "lease.json"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to train a run. Whoever took it last has it; nothing expires, so a killed run resumes at once."""

    store: ObjectStore
    run_id: str
    owner: str
    token: str

    def check(self) -> None:
        """Raise `CommitConflict` if another process has taken the run over."""
        data = self.store.get(run_key(self.run_id, _LEASE))
        try:
            holder = read_json_text(data)
            token, owner, taken = holder["token"], holder["owner"], holder["taken"]
        except (ValueError, KeyError, TypeError) as error:
            raise CommitConflict(
                f"{self.store.uri(run_key(self.run_id, _LEASE))} is damaged: resume the run"
            ) from error
        if token != self.token:
            raise CommitConflict(f"run {self.run_id} was taken over by {owner} at {taken}: this process stops here")


@dataclass(frozen=True, slots=True)
class RunState:
    """What was found when a run was inspected: the newest valid commit, and what is wrong with newer ones."""

    latest: Manifest | None
    problems: tuple[str, ...]  #: one line each, newest iteration first


class RunStore:
    """The runs of an object store. See `roleagent.storage.manifest` for the layout."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def create(self, run_id: str, config_json: str) -> None:
        """Make a run; its config is written if absent, so a run id is taken once.

        Raises:
            StorageError: the run exists.
        """
        try:
            self.store.put(run_key(run_id, _CONFIG), config_json.encode(), if_absent=True)
        except ObjectExistsError as error:
            raise StorageError(
                f"run {run_id} exists already in {self.store.uri()}: resume it, or start one with another run id"
            ) from error

    def has(self, run_id: str) -> bool:
        """Return whether there is a run with this id."""
        return self.store.exists(run_key(run_id, _CONFIG))

    def list_runs(self) -> list[str]:
        """Return the ids of all runs, sorted."""
        return [name for name in self.store.folders("runs") if self.has(name)]

    def config(self, run_id: str) -> str:
        """Return the config that the run was created with, as JSON."""
        try:
            return self.store.get(run_key(run_id, _CONFIG)).decode()
        except MissingObjectError as error:
            raise MissingObjectError(f"there is no run {run_id} in {self.store.uri()}: see `roleagent runs`") from error

    def write(self, run_id: str, name: str, data: bytes) -> str:
        """Write an object of the run itself, such as `status.json`; return its address."""
        if name in {_CONFIG, _LEASE} or name.startswith("iterations/"):
            raise StorageError(f"'{name}' is not written this way")
        key = check_key(run_key(run_id, name))
        self.store.put(key, data)
        return self.store.uri(key)

    def read_run(self, run_id: str, name: str) -> bytes:
        """Return an object of the run itself; raise `MissingObjectError` if there is none."""
        return self.store.get(check_key(run_key(run_id, name)))

    def take(self, run_id: str, owner: str) -> Lease:
        """Take the lease of a run, from whoever has it; the other process stops at its next write.

        What killed writers left more than a day ago is swept away.

        Args:
            run_id: the run.
            owner: words for a person, such as host and process id.
        """
        taken = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        lease = Lease(self.store, check_run_id(run_id), owner, secrets.token_hex(16))
        value = {"owner": owner, "token": lease.token, "taken": taken}
        self.store.put(run_key(run_id, _LEASE), json.dumps(value, sort_keys=True).encode())
        try:
            self.store.sweep(run_key(run_id))
        except StorageError as error:  # a bucket policy may forbid it, and training does not need it
            _LOG.warning("unfinished writes were not swept away: %s", error)
        return lease

    def committed(self, run_id: str) -> list[int]:
        """Return the numbers of all iterations that have a manifest, sorted."""
        return sorted(n for n, names in self.listing(run_id).items() if MANIFEST in names)

    def manifest(self, run_id: str, iteration: int) -> Manifest:
        """Return a committed iteration's manifest; raise `MissingObjectError` if it is not committed."""
        try:
            data = self.store.get(iteration_key(run_id, iteration, MANIFEST))
        except MissingObjectError as error:
            raise MissingObjectError(
                f"iteration {iteration} of run {run_id} is not committed in {self.store.uri()}"
            ) from error
        return self._read_manifest(run_id, iteration, data)

    def _read_manifest(self, run_id: str, iteration: int, data: bytes) -> Manifest:
        key = iteration_key(run_id, iteration, MANIFEST)
        manifest = Manifest.from_json(data, self.store.uri(key))
        if (manifest.run_id, manifest.iteration) != (run_id, iteration):
            raise StorageError(f"{self.store.uri(key)} belongs to iteration {manifest.iteration} of {manifest.run_id}")
        return manifest

    def pruned(self, run_id: str, iteration: int) -> frozenset[str]:
        """Return the names of the objects that retention has removed from an iteration."""
        try:
            return parse_pruned(self.store.get(iteration_key(run_id, iteration, PRUNED)))
        except MissingObjectError:
            return frozenset()

    def inspect(self, run_id: str, *, verify: bool = True, every: Collection[str] = ()) -> RunState:
        """Find the newest valid commit, and say what is wrong with newer ones.

        A commit is valid when every object of its manifest is there with its size and, with `verify`, its SHA-256;
        when no part of its checkpoint was pruned; and when all iterations before it have a manifest.

        Args:
            run_id: the run.
            verify: read every object of the candidate; without, one listing and the manifest are read.
            every: objects that whoever goes on reads of all iterations: they must be valid in those before it too.

        Raises:
            StorageError: the store cannot be read, which says nothing about its commits.
        """
        listing = self.listing(run_id)
        committed = [n for n, names in sorted(listing.items()) if MANIFEST in names]
        whole = next((n for n, found in enumerate(committed) if n != found), len(committed))
        problems = [
            f"iteration {n} of run {run_id} cannot follow: iteration {whole} has no manifest"
            for n in reversed(committed[whole:])
        ]
        for iteration in range(whole) if every else ():
            problem = self._problem(run_id, iteration, listing[iteration], verify=verify, names=every)
            if problem:
                more = ", nor what follows it" if iteration < whole - 1 else ""
                problems.append(f"iteration {iteration} of run {run_id} is not valid{more}: {problem}")
                whole = iteration
                break
        for iteration in reversed(range(whole)):
            problem = self._problem(run_id, iteration, listing[iteration], verify=verify)
            if not problem:
                return RunState(self.manifest(run_id, iteration), tuple(problems))
            problems.append(f"iteration {iteration} of run {run_id} is not valid: {problem}")
        return RunState(None, tuple(problems))

    def latest_valid(self, run_id: str, verify: bool = True) -> Manifest | None:
        """Return the newest valid manifest, or None; what is wrong with newer ones is logged as warnings."""
        state = self.inspect(run_id, verify=verify)
        for problem in state.problems:
            _LOG.warning("%s; the one before is tried", problem)
        return state.latest

    def rollback(self, run_id: str, after: int) -> list[int]:
        """Undo all commits after iteration `after` (-1: all of them), newest first, and return their numbers.

        The manifests are kept as `undone-<time>.json`; the objects stay until they are written over. To be called on
        resuming from a commit that is not the newest, which otherwise would block the repeat of its iteration.
        """
        undone = [n for n in self.committed(run_id) if n > after]
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S%f")
        for iteration in reversed(undone):
            key = iteration_key(run_id, iteration, MANIFEST)
            self.store.put(iteration_key(run_id, iteration, f"undone-{stamp}.json"), self.store.get(key))
            self.store.delete(iteration_key(run_id, iteration, PRUNED))
            self.store.delete(key)
        return undone

    def read(self, run_id: str, iteration: int, name: str) -> bytes:
        """Return a committed object, checked against its manifest.

        Raises:
            MissingObjectError: the iteration is not committed, or retention has removed the object.
            StorageError: the object is not part of the commit, or is damaged.
        """
        record = self.manifest(run_id, iteration).record(name)
        key = iteration_key(run_id, iteration, name)
        data = self.store.get(key)
        if hashlib.sha256(data).hexdigest() != record.sha256:
            raise self._damaged(key)
        return data

    def fetch_checkpoint(self, run_id: str, iteration: int, folder: Path) -> Path:
        """Write an iteration's checkpoint into a folder, check every file, and return the folder.

        Files that are there with the right content are not fetched again.
        """
        records = self.manifest(run_id, iteration).checkpoint()
        if not records:
            raise StorageError(f"iteration {iteration} of run {run_id} has no checkpoint")
        gone = self.pruned(run_id, iteration) & {record.name for record in records}
        if gone:
            raise MissingObjectError(
                f"the checkpoint of iteration {iteration} of run {run_id} was removed by storage.keep_checkpoints: "
                "take iteration 0, the best, or one of the newest"
            )
        for record in records:
            path = folder / record.name.removeprefix(f"{CHECKPOINT}/")
            if not _holds(path, record):
                key = iteration_key(run_id, iteration, record.name)
                self.store.get_file(key, path)
                if not _holds(path, record):
                    path.unlink(missing_ok=True)
                    raise self._damaged(key)
        return folder

    def checkpoint_uri(self, run_id: str, iteration: int) -> str:
        """Return the address of an iteration's checkpoint folder."""
        return self.store.uri(iteration_key(run_id, iteration, CHECKPOINT))

    def listing(self, run_id: str) -> dict[int, dict[str, int]]:
        """Return the sizes of all objects of a run, by iteration and name, from one listing."""
        folder = run_key(run_id, "iterations")
        found: dict[int, dict[str, int]] = {}
        for item in self.store.list(folder):
            number, _, name = item.key.removeprefix(f"{folder}/").partition("/")
            if name and number.isdecimal() and str(int(number)) == number:
                found.setdefault(int(number), {})[name] = item.size
        return found

    def _problem(
        self, run_id: str, iteration: int, sizes: dict[str, int], *, verify: bool, names: Collection[str] | None = None
    ) -> str:
        """Return what is wrong with an iteration, or with those of its objects that are named; "" if nothing is."""
        try:
            data = self.store.get(iteration_key(run_id, iteration, MANIFEST))
        except MissingObjectError as error:  # and no other: a store that cannot be read is no damaged commit
            return str(error)
        try:
            manifest = self._read_manifest(run_id, iteration, data)
        except StorageError as error:
            return str(error)
        pruned = self.pruned(run_id, iteration) if PRUNED in sizes else frozenset()
        objects = [record for record in manifest.objects if names is None or record.name in names]
        for record in objects:
            if record.name in pruned:
                return f"{record.name} was removed by retention"
            if record.name not in sizes:
                return f"{record.name} is missing"
            if sizes[record.name] != record.size:
                return f"{record.name} has {sizes[record.name]} bytes instead of {record.size}"
        for record in objects if verify else ():
            try:
                _, sha256 = self.store.digest(iteration_key(run_id, iteration, record.name))
            except MissingObjectError:
                return f"{record.name} is missing"
            if sha256 != record.sha256:
                return f"the content of {record.name} has changed"
        return ""

    def _damaged(self, key: str) -> StorageError:
        return StorageError(
            f"{self.store.uri(key)} is not what was committed: resume the run to go back to a valid iteration"
        )


def _holds(path: Path, record: ObjectRecord) -> bool:
    return path.is_file() and file_digest(path) == (record.size, record.sha256)
