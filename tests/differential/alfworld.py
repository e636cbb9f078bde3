"""Compare our engine with the stock engine of ALFWorld: `python -m tests.differential.alfworld`.

Records the stock engine's answers (slow: about a second a game, 0.1 a command), one file a game, so that it goes on
where it was stopped; then replays everything on our engine and writes `build/differential/alfworld.json`: what was
covered, and every difference. `--publish` keeps the digests of the answers, which the test suite replays.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from roleagent.environments.household.generator import task_id
from tests.differential.games import Source, load
from tests.differential.ours import replay
from tests.differential.recording import Unit, from_list, publish, record
from tests.differential.stock import Answer, quicken, versions

BUILD = Path(__file__).parents[2] / "build" / "differential"
RAW = BUILD / "alfworld"


def plan(seen: int, train: int, plays: int, old: int, household: int, steps: int) -> list[Unit]:
    """Return the units: walkthroughs of `seen` and `train` games, play in `plays` of both, and other grammars.

    Games are spread over the whole split. Played games are a third seen ones.
    """
    units = []
    for split, count, played in (("valid_seen", seen, plays // 3), ("train", train, plays - plays // 3)):
        chosen = spread(ids(split), count)
        playing = set(spread(chosen, played))
        units += [Unit(Source(split, game), True, (0,) if game in playing else (), steps) for game in chosen]
    units += [Unit(Source("old", game), True, (1,), steps) for game in spread(ids("valid_seen"), old)]
    levels = ("small", "medium", "large")
    homes = [task_id(levels[index % 3], "train", index) for index in range(household)]
    units += [Unit(Source("household", game), True, (2,), steps) for game in homes]
    return sorted(units, key=lambda unit: (not unit.seeds, unit.key))


@cache
def ids(split: str) -> list[str]:
    """Return the ids of a split."""
    return load(split, ())


def spread(values: list[str], count: int) -> list[str]:
    """Return `count` values at equal distances."""
    count = min(count, len(values))
    return [values[index * len(values) // count] for index in range(count)]


def main(arguments: list[str]) -> int:
    """Record what is missing, compare all, write the result; return 1 if there is a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential.alfworld", description=__doc__)
    parser.add_argument("--seen", type=int, default=140, help="valid_seen games (walkthroughs)")
    parser.add_argument("--train", type=int, default=300, help="train games (walkthroughs)")
    parser.add_argument("--games", type=int, default=200, help="of these, games that are played adversarially")
    parser.add_argument("--old", type=int, default=20, help="games with the grammar from before December 2024")
    parser.add_argument("--household", type=int, default=30, help="generated homes")
    parser.add_argument("--steps", type=int, default=60, help="commands of a played game")
    parser.add_argument("--processes", type=int, default=1, help="stock engines side by side")
    parser.add_argument("--publish", action="store_true", help="keep the digests for the test suite")
    given = parser.parse_args(arguments)
    units = plan(given.seen, given.train, given.games, given.old, given.household, given.steps)
    files = list(recorded(units, given.processes))
    raws = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(files)]
    result = compare(raws)
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "alfworld.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if given.publish:
        publish(raws)
    sys.stdout.write(f"{json.dumps({**result, 'differences': len(result['differences'])}, indent=1)}\n")
    return 1 if result["differences"] else 0


def compare(raws: list[dict[str, Any]]) -> dict[str, Any]:
    """Replay raw answers of the stock engine on ours; return what was covered, and the differences in full."""
    counts: Counter[str] = Counter()
    verbs: Counter[str] = Counter()
    differences = []
    for raw in raws:
        counts[f"games {raw['kind']}"] += 1
        source = Source(raw["kind"], raw["game"])
        for episode in raw["episodes"]:
            ours = replay(source, episode["commands"])
            counts[f"episodes {episode['how'].split()[0]}"] += 1
            counts["won"] += ours[-1][1].won
            counts["answers"] += len(ours)
            for (command, answer), values in zip(ours, episode["answers"], strict=True):
                stock = from_list(values)
                refused = stock.feedback == "Nothing happens."
                verbs[f"{'impossible' if refused else command.split(' ')[0] or 'reset'}"] += 1
                if answer != stock:
                    differences.append(
                        {
                            "kind": raw["kind"],
                            "game": raw["game"],
                            "how": episode["how"],
                            "command": command,
                            "ours": _only(answer, stock),
                            "stock": _only(stock, answer),
                        }
                    )
    return {
        "versions": versions(),
        "covered": dict(sorted(counts.items())),
        "answers": dict(verbs.most_common()),
        "differences": differences,
    }


def _only(answer: Answer, other: Answer) -> dict[str, Any]:
    """Return the parts of an answer that another answer does not share."""
    found = {
        name: getattr(answer, name)
        for name in ("feedback", "score", "done", "won")
        if getattr(answer, name) != getattr(other, name)
    }
    more = sorted(set(answer.admissible) - set(other.admissible))
    return {**found, "admissible": more} if more else found


def recorded(units: list[Unit], processes: int) -> Iterator[Path]:
    """Record every unit and yield its raw file. The engine leaks: a process is replaced after some games."""
    with multiprocessing.get_context("spawn").Pool(processes, quicken, maxtasksperchild=50) as pool:
        for done, file in enumerate(pool.imap_unordered(partial(record, folder=RAW), units), start=1):
            sys.stderr.write(f"\r{done} of {len(units)} games")
            yield file
    sys.stderr.write("\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
