"""From an address to what lies there: `s3://bucket/prefix`, a folder, or `file:///folder`."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from roleagent.errors import StorageError
from roleagent.storage.object_store import MissingObjectError, ObjectStore


def open_store(uri: str, endpoint_url: str = "") -> ObjectStore:
    """Open `s3://bucket/prefix`, a folder, or `file:///folder`.

    Args:
        uri: the address; a folder is made if it does not exist.
        endpoint_url: S3 endpoint, empty for the default one; only for `s3://`.

    Raises:
        StorageError: the address cannot be used.
    """
    scheme, separator, _ = uri.partition("://")
    if separator and scheme == "s3":
        from roleagent.storage.s3_store import S3Store

        parts = urlsplit(uri)
        return S3Store(parts.netloc, parts.path, endpoint_url=endpoint_url)
    from roleagent.storage.local_store import LocalStore

    if separator and scheme == "file":
        parts = urlsplit(uri)
        if parts.netloc not in {"", "localhost"}:
            raise StorageError(f"storage uri {uri!r} names a host: write file:///folder, or the folder alone")
        return LocalStore(Path(unquote(parts.path)))
    if separator:
        raise StorageError(f"storage uri {uri!r} has an unknown scheme: use s3://bucket/prefix or a folder")
    if not uri.strip():
        raise StorageError("storage uri is empty: use s3://bucket/prefix or a folder")
    return LocalStore(Path(uri).expanduser())


def fetch_folder(uri: str, folder: Path, endpoint_url: str = "") -> Path:
    """Bring all objects below an address (`s3://bucket/prefix`, or a folder) into a local folder; return the folder.

    A local address is returned as it is: nothing is copied.

    Raises:
        MissingObjectError: there is nothing at the address.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme == "file":
        path = Path(unquote(rest) if separator else uri).expanduser()
        if not path.is_dir():
            raise MissingObjectError(f"there is no folder {path}")
        return path
    store = open_store(uri, endpoint_url)
    items = store.list()
    if not items:
        raise MissingObjectError(f"there is nothing at {uri}")
    for item in items:
        store.get_file(item.key, folder / item.key)
    return folder
