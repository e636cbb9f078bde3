"""Which checkpoints are kept: the first, the best and the newest ones. Records and metrics always stay.

The order is crash-safe: what will go is written down before anything goes, and a repeat finishes the work.
"""

from __future__ import annotations

import json

from roleagent.storage.manifest import CHECKPOINT, MANIFEST, PRUNED, Manifest, iteration_key
from roleagent.storage.object_store import ObjectStore
from roleagent.storage.runs import RunStore


def prune(store: ObjectStore, run_id: str, keep_newest: int, best_iteration: int | None = None) -> list[int]:
    """Delete the checkpoints of older iterations and return the numbers of those that lost theirs now.

    Args:
        store: the object store.
        run_id: the run.
        keep_newest: how many of the newest committed iterations keep their checkpoint; at least 1.
        best_iteration: keeps its checkpoint too, like iteration 0; None if there is no best yet.

    Raises:
        ValueError: `keep_newest` is less than 1.
        StorageError: the store failed; what was written down is deleted by the next call.
    """
    if keep_newest < 1:
        raise ValueError("keep_newest must be at least 1")
    listing = RunStore(store).listing(run_id)
    committed = sorted(n for n, names in listing.items() if MANIFEST in names)
    kept = {0, best_iteration, *committed[-keep_newest:]}
    pruned = []
    for iteration in committed:
        stored = [name for name in listing[iteration] if name.startswith(f"{CHECKPOINT}/")]
        if iteration in kept or not stored:
            continue
        key = iteration_key(run_id, iteration, MANIFEST)
        names = [record.name for record in Manifest.from_json(store.get(key), store.uri(key)).checkpoint()]
        store.put(iteration_key(run_id, iteration, PRUNED), json.dumps({"objects": names}).encode())
        for name in stored:
            store.delete(iteration_key(run_id, iteration, name))
        pruned.append(iteration)
    return pruned
