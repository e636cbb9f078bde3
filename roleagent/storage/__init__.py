"""Where checkpoints and records are kept: an object store, the commit protocol above it, and retention.

Importing this package is light: boto3 is imported when an `s3://` store is opened.
"""

from roleagent.storage.commit import IterationWriter
from roleagent.storage.manifest import Manifest, ObjectRecord
from roleagent.storage.object_store import (
    MissingObjectError,
    MissingStoreError,
    ObjectExistsError,
    ObjectStore,
    StoredObject,
)
from roleagent.storage.opening import fetch_folder, open_store
from roleagent.storage.retention import prune
from roleagent.storage.runs import Lease, RunStore

__all__ = [
    "IterationWriter",
    "Lease",
    "Manifest",
    "MissingObjectError",
    "MissingStoreError",
    "ObjectExistsError",
    "ObjectRecord",
    "ObjectStore",
    "RunStore",
    "StoredObject",
    "fetch_folder",
    "open_store",
    "prune",
]
