"""Why an episode failed, by the engine: the truth that diagnoses are compared with.

`explain(game, actions)` replays an episode of any agent and names its failure in the words of the scripted failures
(`MISTAKES`). Each type has a definition here, a function of the facts; several may hold of one episode. The one that
is named is found in this order:

1. Commitments: something was done with an object, or left out, and never mended: wrong object, wrong treatment,
   missing treatment, premature placement, wrong receptacle, closed target, lamp not used. The earliest counts.
2. Invalid action: most commands were refused, or all of the last ones.
3. Searches: second object forgotten, unopened receptacle, repeated exploration. The earliest counts.
4. What holds in part only (a finding that is not `sure`), in the same order.

Ties go to the type that stands first in the list of rules. `docs/diagnosis-accuracy.md` has the definitions in words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from roleagent.environments.base import Verdict
from roleagent.environments.household.engine import is_open
from roleagent.environments.household.game import NOBODY, Game
from roleagent.environments.household.replay import NOTHING, Episode, replay

REFUSED_RUN = 3  #: refused commands at the end of an episode that make it one of invalid actions


class Finding(NamedTuple):
    """A definition that holds: the steps of the mistake, the decisive one first, and whether it holds in full."""

    steps: Sequence[int]
    sure: bool = True


Rule = Callable[[Episode], Finding | None]


def explain(game: Game, actions: Sequence[str]) -> Verdict | None:
    """Return what made an episode fail; None if it was won.

    Args:
        game: what was played.
        actions: its T >= 1 commands, in the engine's words.

    Raises:
        ValueError: there are no actions.
    """
    episode = replay(game, actions)
    if episode is None:
        return None
    found = {name: finding for name, rule in RULES.items() if (finding := rule(episode)) is not None}
    for sure in (True, False):
        for tier in TIERS:
            named = [name for name in tier if name in found and found[name].sure is sure]
            if named:
                name = min(named, key=lambda other: found[other].steps[0])  # the first of equals
                also = tuple(other for other in found if other != name)
                steps = found[name].steps
                return Verdict(name, steps[0], tuple(sorted(set(steps))), also)
    return Verdict("", episode.length, (episode.length,), ())


# -- commitments -----------------------------------------------------------------------------------------------------


def closed_target(episode: Episode) -> Finding | None:
    """Stood with the object, ready to be placed, at a closed receptacle of the target's kind and did not open it."""
    if not episode.holds_subject or episode.goal.lamp:
        return None
    steps: list[int] = []
    for act in episode.acts[episode.taken :]:
        for place in episode.game.here(act.before.location):
            if not episode.is_target(place) or not episode.ready(act.before, episode.subject):
                continue
            if is_open(episode.game, act.before, place) or is_open(episode.game, act.after, place):
                steps = []  # it was, or has been, opened: what comes later is another mistake
            else:
                steps.append(act.number)
    return Finding(list(dict.fromkeys(steps))) if steps else None


def wrong_treatment(episode: Episode) -> Finding | None:
    """Treated the object in another way than asked, and not as asked after that."""
    if not episode.wrong_treatments or episode.ready(episode.end, episode.subject):
        return None
    put = episode.put(episode.subject)
    return Finding([*episode.wrong_treatments, *([put.number] if put else [])])


def missing_treatment(episode: Episode) -> Finding | None:
    """Placed the object at the target untreated, or carried it about without trying to treat it."""
    if not episode.verb or episode.subject == NOTHING or episode.ready(episode.end, episode.subject):
        return None
    if episode.wrong_treatments:
        return None
    put = episode.put(episode.subject)
    if put is not None:
        return Finding([put.number], sure=episode.is_target(put.place))
    later = episode.acts[episode.taken :]
    tried = any(act.verb == episode.verb and act.thing == episode.subject for act in later)
    astray = [act.number for act in later if act.verb == "move" or (act.verb == "go" and act.valid)]
    astray = [number for number in astray if not episode.is_appliance(episode.acts[number - 1].place)]
    return Finding(astray, sure=not tried) if astray else None


def premature_placement(episode: Episode) -> Finding | None:
    """Put the object down elsewhere than at the target before it was treated."""
    put = episode.put(episode.subject) if episode.subject != NOTHING else None
    if put is None or not episode.verb or episode.ready(episode.end, episode.subject) or episode.wrong_treatments:
        return None
    return Finding([put.number], sure=not episode.is_target(put.place))


def wrong_receptacle(episode: Episode) -> Finding | None:
    """Put the object, ready to be placed, where it does not count, or carried it to such receptacles only."""
    if episode.subject == NOTHING or episode.goal.lamp or episode.subject in episode.placed:
        return None
    put = episode.put(episode.subject)
    ready = episode.ready(episode.end, episode.subject)
    if put is not None:
        if episode.is_target(put.place) and not ready:
            return None
        return Finding([put.number], sure=ready)
    if not ready:
        return None
    later = [act for act in episode.acts[episode.taken :] if episode.ready(act.before, episode.subject)]
    elsewhere = [act for act in later if act.place != NOTHING and not episode.is_target(act.place)]
    tried = [act.number for act in elsewhere if act.verb == "move" and episode.at(act.before, act.place)]
    astray = [act for act in elsewhere if act.verb == "go" and act.valid]
    arrived = [act.number for act in later if any(map(episode.is_target, episode.game.here(act.after.location)))]
    left = [act.number for act in astray if arrived and act.number > arrived[0]]
    steps = tried or left or [act.number for act in astray]
    return Finding(steps, sure=bool(tried) or not arrived) if steps else None


def wrong_object(episode: Episode) -> Finding | None:
    """Took, last of all, an object of another kind, and kept it or brought it to the target."""
    if not episode.takes or episode.takes[-1].thing in episode.wanted:
        return None
    take = episode.takes[-1]
    put = episode.put(take.thing)
    return Finding([take.number, *([put.number] if put else [])], sure=put is None or episode.is_target(put.place))


def lamp_not_used(episode: Episode) -> Finding | None:
    """Stood with the object where the lamp is and did not turn it on."""
    if episode.goal.lamp is None:
        return None
    lamps = [index for index, thing in enumerate(episode.game.things) if thing.kind == episode.goal.lamp]
    steps = []
    for act in episode.acts:
        if act.before.held in episode.wanted:
            places = episode.game.here(act.before.location)
            if any(lamp in act.before.contents[place] for lamp in lamps for place in places):
                steps.append(act.number)
    return Finding(steps) if steps else None


# -- commands that are refused ---------------------------------------------------------------------------------------


def invalid_action(episode: Episode) -> Finding | None:
    """More than half of the commands were refused, or the last ones all were."""
    refused = [act.number for act in episode.acts if not act.valid]
    if not refused:
        return None
    runs: list[list[int]] = []
    for number in refused:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    last = runs[-1]
    most = 2 * len(refused) > episode.length
    at_end = last[-1] == episode.length and len(last) >= REFUSED_RUN
    if not most and not at_end:
        return Finding(last, sure=False) if last[-1] == episode.length or 3 * len(refused) > episode.length else None
    longest = last if at_end else max(runs, key=len)
    return Finding([*longest, *refused])


# -- searches --------------------------------------------------------------------------------------------------------


def second_object_forgotten(episode: Episode) -> Finding | None:
    """Placed the first of two objects and then did not look for the second, or saw it and let it lie."""
    if episode.goal.count != 2 or not episode.placed or episode.end.held in episode.wanted:
        return None
    if episode.subject != NOTHING and episode.subject not in episode.placed:
        return None
    phase, never = episode.phase, episode.length + 1
    after = [act.place for act in episode.arrivals if act.number >= phase]
    known = any(thing in episode.seen for thing in episode.needed)
    back = bool(after) and all(episode.searched.get(place, never) < phase for place in after)
    looked = bool(after) and episode.searched.get(after[0], never) >= phase
    if looked:  # it began like a search; a search does not go by what is closed
        others = [
            finding.steps[0] for rule in (unopened_receptacle, repeated_exploration) if (finding := rule(episode))
        ]
        passed = [number for place in set(after) for number in episode.left_closed(place) if number >= phase]
        looked = min(passed, default=never) >= min(others, default=never)
    return Finding([phase, *episode.overlooked], sure=known or not (looked or back))


def unopened_receptacle(episode: Episode) -> Finding | None:
    """Went by a closed receptacle in which a needed object lay that was never seen."""
    if episode.end.held in episode.wanted or len(episode.wanted & episode.seen.keys()) >= episode.goal.count:
        return None
    steps: list[int] = []
    for place, contents in enumerate(episode.end.contents):
        if not is_open(episode.game, episode.end, place) and any(thing in episode.needed for thing in contents):
            steps += episode.left_closed(place)
    return Finding(sorted(steps)) if steps else None


def repeated_exploration(episode: Episode) -> Finding | None:
    """Went back to places seen before while others were unsearched, or from where the object lay in sight."""
    if episode.end.held != NOBODY and not episode.searches_lamp():
        return None
    steps = sorted({*episode.returns, *episode.overlooked})
    return Finding(steps, sure=bool(episode.returns)) if steps else None


#: Failure type -> its definition.
RULES: dict[str, Rule] = {
    "closed target": closed_target,
    "wrong treatment": wrong_treatment,
    "missing treatment": missing_treatment,
    "premature placement": premature_placement,
    "wrong receptacle": wrong_receptacle,
    "wrong object": wrong_object,
    "lamp not used": lamp_not_used,
    "invalid action": invalid_action,
    "second object forgotten": second_object_forgotten,
    "unopened receptacle": unopened_receptacle,
    "repeated exploration": repeated_exploration,
}
_NAMES = tuple(RULES)
#: Types that compete by time; a tier goes before the next.
TIERS = (_NAMES[:7], _NAMES[7:8], _NAMES[8:])
