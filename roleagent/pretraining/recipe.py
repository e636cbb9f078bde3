"""The recipes of the small policies: `roleagent pretrain` runs them.

`quickstart`: four stages over one endless corpus. The first learns the household's language: every text of an episode
counts. The second turns to decisions: a turn's first words, which choose what to do, weigh several times as much. The
third goes on at small learning rates: with Muon, what is rare (noticing the object, taking it, going on after a slip)
is learned at small rates only. Until here the demonstrator is the expert. The fourth imitates one with habits: three
of five of its episodes fail by a characteristic mistake. So what is published is able to solve the tasks and often
does not, which leaves to reinforcement learning what it is for.

`alfworld`: the first three stages, in which the policy learns to read goal and room, for homes are all different. Then
ALFWorld's training games, without the development games, and large generated homes between them: with the games alone,
whose rooms are few, it learns their furniture by heart and reads no more. Last, the policy plays itself, and the
demonstrator goes on from its mistakes.

`foresight`: the policy of `quickstart` goes on with demonstrations that foresee one, two or four states, half of them
four: it has learned one already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from roleagent.pretraining.corpus import CorpusSettings
from roleagent.pretraining.train import PretrainSettings, Stage

#: Failure type -> probability of the mistake at its first occasion in an episode.
HABITS: Mapping[str, float] = {
    "repeated exploration": 0.06,
    "unopened receptacle": 0.5,
    "wrong object": 0.06,
    "missing treatment": 0.35,
    "wrong treatment": 0.4,
    "premature placement": 0.2,
    "wrong receptacle": 0.12,
    "closed target": 0.55,
    "lamp not used": 0.55,
    "second object forgotten": 0.55,
    "invalid action": 0.08,
}

_LANGUAGE = CorpusSettings(environment_share=0.15, slips=0.1)
_DECISIONS = replace(_LANGUAGE, decision_weight=6.0, prediction_weight=0.15, observation_weight=0.05)
_HABITS = replace(_DECISIONS, habits=HABITS)
_HOMES = (
    Stage(_LANGUAGE, 1500),
    Stage(_DECISIONS, 2500, begin=0.7, end=0.25),
    Stage(_DECISIONS, 5000, begin=0.25, end=0.02),
)


def quickstart(seed: int = 0) -> PretrainSettings:
    """Return the recipe with a seed for weights and corpus."""
    return PretrainSettings(
        stages=(
            *_HOMES,
            Stage(_HABITS, 800, begin=0.1, end=0.0),
        ),
        seed=seed,
    )


def alfworld(seed: int = 0) -> PretrainSettings:
    """Return the recipe for ALFWorld's games, with a seed for weights and corpus."""
    games = replace(
        _DECISIONS,
        environment="alfworld",
        level="large",
        generated_share=0.4,
        max_steps=50,
        decision_tokens=6,
        oversights=0.1,
    )
    own = replace(games, own_share=0.5, oversights=0.0)
    return PretrainSettings(
        stages=(
            *_HOMES,
            Stage(games, 3000, begin=0.4, end=0.02),
            Stage(own, 1200, begin=0.25, end=0.01, own_plays=1200),
        ),
        seed=seed,
        max_length=4096,
    )


def foresight(seed: int = 0) -> PretrainSettings:
    """Return the recipe for several predicted states a turn, with a seed for the corpus."""
    several = replace(_HABITS, horizons=(1, 2, 4, 4), prediction_weight=0.5)
    return PretrainSettings(
        stages=(Stage(several, 2600, begin=0.3, end=0.0),),
        seed=seed,
        base="roleagent:quickstart",
        max_length=4096,
    )


#: Name -> recipe as a function of the seed.
RECIPES: Mapping[str, Callable[[int], PretrainSettings]] = {
    "quickstart": quickstart,
    "alfworld": alfworld,
    "foresight": foresight,
}
