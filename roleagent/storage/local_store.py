"""A folder as an object store.

A write goes to a temporary file beside its target, is flushed to the disk, and then takes its name: by rename, or,
with `if_absent`, by a hard link, which the file system makes only if the name is free. A reader therefore sees an old
object or a new one, never a part.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from roleagent.errors import StorageError
from roleagent.storage.object_store import (
    Digest,
    Listing,
    MissingObjectError,
    MissingStoreError,
    ObjectExistsError,
    StoredObject,
    check_key,
    check_prefix,
)

_BLOCK = 1 << 20
_MEND = {
    errno.ENOSPC: "the disk is full: free some space, or set storage.uri to another folder",
    errno.EDQUOT: "the disk quota is used up: free some space, or set storage.uri to another folder",
    errno.EACCES: "permission denied: make the folder writable, or set storage.uri to another one",
    errno.EPERM: "the file system does not allow it: set storage.uri to another folder",
    errno.EROFS: "the file system is read-only: set storage.uri to another folder",
    errno.ENOTDIR: "a part of the path is not a folder: set storage.uri to another one",
    errno.ENAMETOOLONG: "the name is too long: set storage.uri to another folder",
}


class LocalStore:
    """Objects are files below `root`; keys are their relative paths.

    The first write makes the folder. Reading does not, and a folder that was there and is gone is not made again: an
    empty one in the place of a disk that was unmounted would look as if everything were lost.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        with self._explained("open", ""):
            self._made = self.root.is_dir()
            if self.root.exists() and not self._made:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def check_writable(self) -> None:
        """Make the folder, write a file into it, and remove the file."""
        with self._explained("write", ""):
            self._make(self.root)
            temporary = self.root / f".{secrets.token_hex(8)}.tmp"
            try:
                temporary.touch(exist_ok=False)
            finally:
                temporary.unlink(missing_ok=True)

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        """Write an object whole; see `ObjectStore.put`."""
        self._write(key, lambda file: _write_all(file, data), if_absent=if_absent)

    def put_file(self, key: str, path: Path) -> None:
        """Copy a file into the store."""
        if not path.is_file():
            raise StorageError(f"cannot write {self.root / key}: its source {path} is not a file")

        def copy(file: BinaryIO) -> None:
            with path.open("rb") as source:
                shutil.copyfileobj(source, file, _BLOCK)

        self._write(key, copy, if_absent=False)

    def get(self, key: str) -> bytes:
        """Return an object's bytes."""
        with self._explained("read", key):
            return self._path(key).read_bytes()

    def get_file(self, key: str, path: Path) -> None:
        """Copy an object into a file."""
        source = self._path(key)
        with self._explained("read", key):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
            try:
                shutil.copyfile(source, temporary)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)

    def digest(self, key: str) -> Digest:
        """Return an object's size and SHA-256."""
        with self._explained("read", key):
            return file_digest(self._path(key))

    def exists(self, key: str) -> bool:
        """Return whether there is an object under this key."""
        path = self._path(key)
        with self._explained("read", key):
            return path.is_file()

    def list(self, prefix: str = "") -> Listing:
        """Return all objects below a folder, sorted by key."""
        folder = self.root / check_prefix(prefix)
        with self._explained("list", prefix):
            return sorted(
                StoredObject(path.relative_to(self.root).as_posix(), size)
                for path, size in _files(folder)
                if not path.name.startswith(".")
            )

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        """Return the names of the folders directly below a folder, sorted."""
        folder = self.root / check_prefix(prefix)
        with self._explained("list", prefix):
            if not folder.is_dir():
                return ()
            return tuple(sorted(e.name for e in os.scandir(folder) if e.is_dir() and not e.name.startswith(".")))

    def delete(self, key: str) -> None:
        """Delete an object; nothing happens if there is none."""
        path = self._path(key)
        with self._explained("delete", key):
            path.unlink(missing_ok=True)

    def sweep(self, prefix: str = "", *, older_than_seconds: float = 86_400.0) -> int:
        """Remove temporary files that killed writers left; return how many."""
        limit = time.time() - older_than_seconds
        removed = 0
        with self._explained("list", prefix):
            for path, _ in list(_files(self.root / check_prefix(prefix))):
                if path.name.startswith(".") and path.suffix == ".tmp":
                    with suppress(FileNotFoundError):  # its writer has just finished
                        if path.stat().st_mtime <= limit:
                            path.unlink()
                            removed += 1
        return removed

    def uri(self, key: str = "") -> str:
        """Return the path of an object, or of the store."""
        return str(self._path(key)) if key else str(self.root)

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _write(self, key: str, fill: Callable[[BinaryIO], None], *, if_absent: bool) -> None:
        target = self._path(key)
        with self._explained("write", key):
            made = self._make(target.parent)
            temporary = target.with_name(f".{target.name[:80]}.{secrets.token_hex(8)}.tmp")
            try:
                with temporary.open("xb") as file:
                    fill(file)
                    file.flush()
                    os.fsync(file.fileno())
                if if_absent:
                    os.link(temporary, target)
                else:
                    temporary.replace(target)
            except FileExistsError as error:
                raise ObjectExistsError(f"{target} exists already") from error
            finally:
                temporary.unlink(missing_ok=True)
            for folder in (target.parent, *made):
                _flush_folder(folder)

    def _make(self, folder: Path) -> tuple[Path, ...]:
        """Make a folder of the store, and the store's own at the first write; see `_make_folders`."""
        if self._made and not self.root.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        try:
            changed = tuple(_make_folders(folder))
        except FileNotFoundError as error:  # some file systems, as /proc, take no folders
            raise StorageError(
                f"cannot write {self.root}: no folder can be made there: set storage.uri to another one"
            ) from error
        self._made = True
        return changed

    @contextmanager
    def _explained(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if self._made and not self.root.is_dir():
                raise MissingStoreError(
                    f"cannot {verb} {self.root / key}: the store's folder is not there: mount it or bring it back"
                ) from error
            raise MissingObjectError(f"cannot {verb} {self.root / key}: there is no such object") from error
        except OSError as error:
            reason = _MEND.get(error.errno or 0, (error.strerror or str(error)).lower())
            raise StorageError(f"cannot {verb} {self.root / key}: {reason}") from error


def file_digest(path: Path) -> Digest:
    """Return the size and SHA-256 of a file, read block by block."""
    state = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            state.update(block)
            size += len(block)
    return Digest(size, state.hexdigest())


def _write_all(file: BinaryIO, data: bytes) -> None:
    file.write(data)


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and its parents; return the folders whose entries changed, to be flushed."""
    changed = []
    missing = folder
    while not missing.exists():
        missing = missing.parent
        changed.append(missing)
    folder.mkdir(parents=True, exist_ok=True)
    return changed


def _flush_folder(folder: Path) -> None:
    """Make the folder's own entries durable; a renamed file can be lost in a power cut without it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """All files below a folder with their sizes; files that vanish meanwhile are left out."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):
                yield path, path.stat().st_size
