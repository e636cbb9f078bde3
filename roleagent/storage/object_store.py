"""One interface to a bucket and to a folder, so that the rest of the library knows neither.

A key is a relative path with `/` between its segments. An object is written whole or not at all, and a write with
`if_absent` is atomic: of many writers exactly one wins. The commit protocol needs no more than that.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from roleagent.errors import CommitConflict, StorageError

_SEGMENT = re.compile(r"[A-Za-z0-9_=@+,-][A-Za-z0-9_=@+,.-]*")
_LONGEST_KEY = 900  # S3 allows 1024 bytes, prefix included


class StoredObject(NamedTuple):
    """An object's key, relative to the store, and its size in bytes."""

    key: str
    size: int


class Digest(NamedTuple):
    """What an object's bytes are: how many, and their SHA-256 in hexadecimal."""

    size: int
    sha256: str


Listing: TypeAlias = list[StoredObject]


class MissingObjectError(StorageError):
    """There is no object under this key."""


class MissingStoreError(StorageError):
    """The folder or the bucket itself is not there."""


class UnreachableStoreError(StorageError):
    """The store's server does not answer, or is overloaded."""

    transient = True


class ObjectExistsError(CommitConflict):
    """A write with `if_absent` found an object under its key."""


class ObjectStore(Protocol):
    """A flat store of named bytes. Every method raises `StorageError` with one line when it fails."""

    def check_writable(self) -> None:
        """Find out whether objects can be written, without leaving one; a folder is made."""

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        """Write an object whole. With `if_absent`, raise `ObjectExistsError` if the key is taken (atomic)."""

    def put_file(self, key: str, path: Path) -> None:
        """Write an object from a file of any size."""

    def get(self, key: str) -> bytes:
        """Return an object's bytes; raise `MissingObjectError` if there is none."""

    def get_file(self, key: str, path: Path) -> None:
        """Write an object into a file (whole or not at all); parent folders are made."""

    def digest(self, key: str) -> Digest:
        """Return an object's size and SHA-256, read as a stream."""

    def exists(self, key: str) -> bool:
        """Return whether there is an object under this key."""

    def list(self, prefix: str = "") -> Listing:
        """Return all objects below the folder `prefix` (all of the store if empty), sorted by key."""

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        """Return the names of the folders directly below the folder `prefix`, sorted."""

    def delete(self, key: str) -> None:
        """Delete an object; nothing happens if there is none."""

    def sweep(self, prefix: str = "", *, older_than_seconds: float = 86_400.0) -> int:
        """Remove what killed writers left below `prefix` (temporary files, unfinished uploads); return how many."""

    def uri(self, key: str = "") -> str:
        """Return the address of an object, or of the store itself."""


def check_key(key: str) -> str:
    """Return the key if it is a safe relative path, else raise `StorageError`.

    Segments hold letters, digits and `_=@+,.-`, and begin with none of `.`; so `..`, absolute paths, back-slashes
    and control characters are impossible, and names that begin with `.` are free for temporary files.
    """
    if len(key) > _LONGEST_KEY or not all(_SEGMENT.fullmatch(segment) for segment in key.split("/")):
        raise StorageError(
            f"object key {key[:120]!r} is not allowed: use at most {_LONGEST_KEY} characters, relative segments of "
            "letters, digits and _=@+,.- that do not begin with a dot"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return a folder prefix without its closing slash, checked like a key; "" means the whole store."""
    stripped = prefix.removesuffix("/")
    return check_key(stripped) if stripped else ""
