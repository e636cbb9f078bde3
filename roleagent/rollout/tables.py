"""Arrow tables to Parquet bytes and back: compressed, with checksums, a schema name and a version.

Used by `records` and `diagnosis_records`, which say what the columns mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roleagent.errors import StorageError

if TYPE_CHECKING:
    import pyarrow as pa

_NAME, _VERSION = b"roleagent.schema", b"roleagent.schema_version"


def to_parquet(table: pa.Table, name: str, version: int) -> bytes:
    """Write a table as Parquet (zstd, page checksums) with the schema's name and version in its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = table.replace_schema_metadata({_NAME: name.encode(), _VERSION: str(version).encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue().to_pybytes())


def from_parquet(data: bytes, schema: pa.Schema, name: str, version: int) -> pa.Table:
    """Read a table that `to_parquet` wrote.

    Raises:
        StorageError: the bytes are damaged, or hold something else or another version of it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read()
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StorageError(f"{name}: not a readable Parquet file ({reason}); restore it or play it again") from error
    metadata = table.schema.metadata or {}
    found = metadata.get(_NAME, b"").decode("utf-8", "replace")
    if found != name:
        raise StorageError(f"{name}: the file holds '{found or 'something else'}'; check its path")
    found_version = metadata.get(_VERSION, b"").decode("utf-8", "replace")
    if found_version != str(version):
        raise StorageError(
            f"{name}: schema version {found_version or 'unknown'}, expected {version}; "
            "read it with the package version that wrote it"
        )
    if not table.schema.equals(schema, check_metadata=False):
        raise StorageError(f"{name}: columns differ from schema version {version}; the file is damaged")
    return table.combine_chunks()
