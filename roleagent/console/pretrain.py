"""Running the pretraining recipe from a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from roleagent.console.progress import clock
from roleagent.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console


def run_pretraining(console: Console, output: Path, *, recipe: str, steps: int | None, seed: int) -> None:
    """Train a small policy by one of the recipes, showing loss and time left.

    A log of the losses is kept beside the checkpoint.
    """
    from roleagent.pretraining.recipe import RECIPES
    from roleagent.pretraining.train import pretrain

    if recipe not in RECIPES:
        raise ConfigError(f"unknown recipe {recipe!r}: choose {', '.join(RECIPES)}")
    settings = RECIPES[recipe](seed)
    last = min(steps or settings.steps, settings.steps)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {output}: {error.strerror}; give another --output") from error
    first: list[dict[str, float]] = []  # the first report; a pace is known from the second on

    def report(row: dict[str, float]) -> None:
        left = ""
        if "plays" in row:
            console.print(
                f"step {row['step']:>6.0f}/{last}  played {row['plays']:.0f}/{row['of']:.0f} episodes  "
                f"{clock(row['seconds'])}",
                highlight=False,
            )
            return
        if first and row["step"] > first[0]["step"]:
            pace = (row["seconds"] - first[0]["seconds"]) / (row["step"] - first[0]["step"])
            left = f"  left {clock(pace * (last - row['step']))}"
        elif not first:
            first.append(row)
        console.print(
            f"step {row['step']:>6.0f}/{last}  loss {row['loss']:.4f}  tokens {row['tokens'] / 1e6:.2f} M{left}",
            highlight=False,
        )
        with (output / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")

    pretrain(settings, output, report, limit=steps)
    console.print(f"The policy is in {output / 'policy'}", highlight=False)
