"""Real ALFWorld games on our engine and on the stock one, in one process: steps, resets, and memory.

Both give the list of possible commands with every answer. A cold reset begins with the game's file; a warm one begins a
game again. The games are those of the checkout's data, or of this machine's store.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from functools import partial
from itertools import islice

import psutil

from roleagent.environments.alfworld.adding import write_store
from roleagent.environments.alfworld.alfworld import AlfWorld
from roleagent.environments.alfworld.games import SplitGames, open_games
from roleagent.environments.alfworld.sources import find_split, open_source, read_compact
from tests.benchmarks.timing import spent
from tests.differential.games import DATA
from tests.differential.stock import StockGame

STOCK_GAMES = 3
GAMES = 100
MANY = 1000


def numbers() -> dict[str, float]:
    """Ratios of CPU time, stock engine over ours, and the memory of many games that are played at once, in MiB."""
    with tempfile.TemporaryDirectory() as home:
        if (DATA / "games_train.jsonl.xz").is_file():
            os.environ["ROLEAGENT_HOME"] = home
            write_store("train", islice(read_compact(DATA / "games_train.jsonl.xz"), MANY))
        games = open_games("train")
        stock = stock_seconds(games)
        ours = our_seconds()
        return {
            "alfworld_step_ratio": stock["step"] / ours["step"],
            "alfworld_cold_reset_ratio": stock["cold"] / ours["cold"],
            "alfworld_warm_reset_ratio": stock["warm"] / ours["warm"],
            "alfworld_step_us": 1e6 * ours["step"],
            "alfworld_1000_games_mb": memory(games.source.games),
        }


def stock_seconds(games: SplitGames) -> dict[str, float]:
    """CPU seconds of the stock engine: medians over games spread over the split."""
    found: dict[str, list[float]] = {"cold": [], "warm": [], "step": []}
    for game in games.source.games[:: max(1, len(games.source.games) // STOCK_GAMES)][:STOCK_GAMES]:
        record = games.source.record(game)
        kept: list[StockGame] = []
        file = json.loads(record.game_file())
        found["cold"].append(spent(lambda file=file, kept=kept: kept.append(StockGame(file))).cpu)  # type: ignore[misc]
        found["warm"].append(spent(kept[0].restart).cpu)
        found["step"] += [spent(partial(kept[0].step, command)).cpu for command in record.walkthrough]
        kept[0].close()
    return {name: statistics.median(values) for name, values in found.items()}


def our_seconds() -> dict[str, float]:
    """CPU seconds of ours: medians over repeats of the mean over games."""
    found: dict[str, list[float]] = {"cold": [], "warm": [], "step": []}
    for repeat in range(3):
        games = SplitGames("train", open_source(find_split("train")))
        names = games.source.games[repeat * GAMES : (repeat + 1) * GAMES]
        environment = AlfWorld()
        found["cold"].append(spent(lambda g=games, n=names, e=environment: begin(g, n, e)).cpu / len(names))  # type: ignore[misc]
        found["warm"].append(spent(lambda g=games, n=names, e=environment: begin(g, n, e)).cpu / len(names))  # type: ignore[misc]
        scripts = [(games.load(name), games.source.record(name).walkthrough) for name in names]
        cpu, steps = 0.0, 0
        for real, walkthrough in scripts:
            environment.begin(real)
            cpu += spent(partial(play, environment, walkthrough)).cpu
            steps += len(walkthrough)
        found["step"].append(cpu / steps)
    return {name: statistics.median(values) for name, values in found.items()}


def begin(games: SplitGames, names: list[str], environment: AlfWorld) -> None:
    for name in names:
        _, first = environment.begin(games.load(name))
        assert first.admissible


def play(environment: AlfWorld, walkthrough: tuple[str, ...]) -> None:
    for command in walkthrough:
        assert environment.step(command).observation.admissible


def memory(names: list[str]) -> float:
    """Return what so many environments, each in another game, add to this process, in MiB for 1,000."""
    process = psutil.Process()
    before = process.memory_info().rss
    environments = []
    for name in names[:MANY]:
        environments.append(AlfWorld())
        environments[-1].reset(f"train/{name}")[1].admissible  # noqa: B018
    return (process.memory_info().rss - before) / 2**20 * 1000 / len(environments)
