"""A home folder of its own for every test, and ablations that are made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from roleagent.ablation.curves import Point
from roleagent.ablation.results import Outcome, Results, make_results
from roleagent.ablation.variants import LABELS
from tests.support.homes import home  # noqa: F401  a fixture

#: Held-out success at the end, by variant and seed; None for a run that failed.
Ends = Mapping[str, Sequence[float | None]]
MakeResults = Callable[..., Results]


@pytest.fixture
def make_up() -> MakeResults:
    """Make up results: every run starts at 40 %, ends after 64 episodes, and takes `seconds` of its variant.

    `delays` has seconds that a variant's last seed takes on top.
    """

    def make(
        ends: Ends,
        reference: str = "full",
        seconds: Mapping[str, float] | None = None,
        delays: Mapping[str, float] | None = None,
    ) -> Results:
        outcomes = []
        for name, values in ends.items():
            for seed, end in enumerate(values):
                run_id = f"some-ablation-{name}-s{seed}"
                if end is None:
                    outcomes.append(Outcome(run_id, name, seed, "failed", "it | broke"))
                    continue
                late = (delays or {}).get(name, 0.0) if seed == len(values) - 1 else 0.0
                time = (seconds or {}).get(name, 60.0) + late
                curve = (Point(0, 0.0, 0.0, 0.4, 100), Point(4, 64.0, time, end, 100))
                outcomes.append(Outcome(run_id, name, seed, "finished", "", curve, f"mlflow-{name}-{seed}"))
        labels = {name: LABELS.get(name, name) for name in ends}
        return make_results("some-ablation", reference, labels, outcomes)

    return make
