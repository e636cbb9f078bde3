"""The recipe of the quickstart policy: `roleagent pretrain` runs it.

Four stages over one endless corpus. The first learns the household's language: every text of an episode counts. The
second turns to decisions: a turn's first words, which choose what to do, weigh several times as much. In both the
predictions are the true next states. The third makes them honest, guesses where the demonstrator has not looked: a
policy that only ever saw true predictions reads its own in place of what it sees. The fourth anneals: with Muon, what
is rare (noticing the object, taking it) is learned at small learning rates only.
"""

from __future__ import annotations

from dataclasses import replace

from roleagent.pretraining.corpus import CorpusSettings
from roleagent.pretraining.train import PretrainSettings, Stage

_LANGUAGE = CorpusSettings(environment_share=0.15, oracle=True)
_DECISIONS = replace(_LANGUAGE, decision_weight=4.0, prediction_weight=0.1, observation_weight=0.05)
_HONEST = replace(
    _LANGUAGE, oracle=False, decision_weight=6.0, prediction_weight=0.15, observation_weight=0.05, slips=0.08
)


def quickstart(seed: int = 0) -> PretrainSettings:
    """Return the recipe with a seed for weights and corpus."""
    return PretrainSettings(
        stages=(
            Stage(_LANGUAGE, 1251),
            Stage(_DECISIONS, 1670, begin=1.0, end=0.08),
            Stage(_HONEST, 2127, begin=0.6, end=0.12),
            Stage(_HONEST, 1100, begin=0.25, end=0.0),
        ),
        seed=seed,
    )
