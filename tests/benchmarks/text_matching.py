"""Matching and grouping of texts beside the plain ways: difflib a pair, and one comparison a pair of states.

4,096 pairs of 300 to 1,000 characters, compared by characters; difflib is `SequenceMatcher(None, p, s,
autojunk=False).ratio()` of public code, timed on 128 of the pairs. 4,096 observations of 60 to 200 characters, half of
them slightly changed, at threshold 0.9; the plain loop compares each with the representatives, one after another, by
`match`, and its groups must be the same.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from difflib import SequenceMatcher

from roleagent.world_in_agent.grouping import state_groups
from roleagent.world_in_agent.matching import match, match_many, normalise
from tests.benchmarks.timing import Spent, median_cpu, spent

COUNT = 4096
ROUNDS = 5
SAMPLE = 128
_WORDS = (
    *(
        "you",
        "arrive",
        "at",
        "the",
        "desk",
        "lamp",
        "table",
        "shelf",
        "book",
        "red",
        "green",
        "open",
        "close",
        "drawer",
    ),
    *("see", "nothing", "on", "it", "a", "an", "cabinet", "fridge", "apple", "mug", "plate", "and"),
)


def text(draw: random.Random, length: int) -> str:
    words: list[str] = []
    while sum(map(len, words)) + len(words) < length:
        words.append(draw.choice(_WORDS) + (f" {draw.randint(1, 9)}" if draw.random() < 0.3 else ""))
    return " ".join(words)[:length]


def changed(draw: random.Random, original: str) -> str:
    words = original.split()
    for _ in range(max(1, len(words) // 8)):
        words[draw.randrange(len(words))] = draw.choice(_WORDS)
    return " ".join(words)


def pairs(draw: random.Random) -> list[tuple[str, str]]:
    """Predictions and states: half of the predictions are nearly right."""
    made = []
    for _ in range(COUNT):
        state = text(draw, draw.randint(300, 1000))
        prediction = changed(draw, state) if draw.random() < 0.5 else text(draw, draw.randint(300, 1000))
        made.append((prediction, state))
    return made


def observations(draw: random.Random) -> list[str]:
    rooms = [text(draw, draw.randint(60, 200)) for _ in range(400)]
    return [changed(draw, draw.choice(rooms)) if draw.random() < 0.5 else draw.choice(rooms) for _ in range(COUNT)]


def plain_groups(states: list[str]) -> list[int]:
    """The pairwise loop: the first representative that matches wins."""
    representatives: list[str] = []
    groups = []
    for state in states:
        place = next(
            (place for place, other in enumerate(representatives) if match(state, other, "characters") >= 0.9),
            len(representatives),
        )
        if place == len(representatives):
            representatives.append(state)
        groups.append(place)
    return groups


def numbers() -> dict[str, float]:
    """For `make bench`: CPU milliseconds, and how many times the plain ways take."""
    draw = random.Random(0)
    texts = pairs(draw)
    folded = [(normalise(p), normalise(s)) for p, s in texts[:SAMPLE]]
    ratios = []
    for _ in range(ROUNDS):
        fast = spent(lambda: match_many(texts, "characters")).cpu
        slow = spent(lambda: [SequenceMatcher(None, p, s, autojunk=False).ratio() for p, s in folded]).cpu
        ratios.append(slow * COUNT / SAMPLE / fast)
    states = observations(draw)
    state_groups(states[:2])  # imports
    grouped: list[list[int]] = []
    grouping = median_cpu(ROUNDS, lambda _: grouped.append(state_groups(states)))
    plain: list[int] = []
    loop: Spent = spent(lambda: plain.extend(plain_groups(states)))
    if plain != grouped[0]:
        raise AssertionError("the groups differ from those of the plain loop")
    return {
        "matching_ratio": statistics.median(ratios),
        "matching_ms": 1000 * median_cpu(ROUNDS, lambda _: match_many(texts, "characters")),
        "matching_words_ms": 1000 * median_cpu(ROUNDS, lambda _: match_many(texts, "words")),
        "grouping_ratio": loop.cpu / grouping,
        "grouping_ms": 1000 * grouping,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(numbers(), indent=1) + "\n")
