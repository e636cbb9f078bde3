"""Many writers of one object at once."""

from __future__ import annotations

import threading

from roleagent.storage import ObjectExistsError, ObjectStore


def race(store: ObjectStore, key: str, writers: int = 16) -> None:
    """Let writers that start together write a key that must be free: one wins, and the object is the winner's."""
    barrier = threading.Barrier(writers)
    winners: list[int] = []

    def write(number: int) -> None:
        barrier.wait()
        try:
            store.put(key, str(number).encode(), if_absent=True)
        except ObjectExistsError:
            return
        winners.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert store.get(key) == str(winners[0]).encode()
