"""Variants: named sets of configuration overrides.

full                            the whole method, and every other named variant of `VARIANTS`
rloo                            any advantage estimator, with its recipe and neither half of the method
mine:advantage.alpha=0.5,...    a free one: a name, and overrides as `--set` takes them
alpha=0,0.5,1                   a sweep: one variant a value; a key may be short where only one section has it
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from roleagent.config import TrainConfig
from roleagent.errors import ConfigError

_PAID = ("world_in_agent.enabled=true", "world_in_agent.form=multiplicative")
# Predictions are asked for and scored, and not paid: the policy writes what it writes in the full method. A policy that
# has learned to predict in every turn would begin far lower without, and what is compared would be that.
_UNPAID = ("world_in_agent.enabled=true", "world_in_agent.form=multiplicative", "world_in_agent.weight=0")
#: The method and its ablations (the method, section 4). They say everything that they are, whatever a preset says.
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "full": ("advantage.estimator=role_agent", *_PAID, "agent_in_world.enabled=true"),
    "no-aiw": ("advantage.estimator=role_agent", *_PAID, "agent_in_world.enabled=false"),
    # The full method, but the match is paid whatever the outcome (docs/reward-hacking.md).
    "additive": (
        "advantage.estimator=role_agent",
        "world_in_agent.enabled=true",
        "world_in_agent.form=additive",
        "agent_in_world.enabled=true",
    ),
    "no-wia": ("advantage.estimator=role_agent", *_UNPAID, "agent_in_world.enabled=true"),
    "no-predictions": (
        "advantage.estimator=role_agent",
        "world_in_agent.enabled=false",
        "agent_in_world.enabled=true",
    ),
}
# Estimators that are halves of the method themselves: their recipes say what is on.
_METHOD = ("role_agent", "role_agent_without_aiw", "role_agent_without_prediction")
#: What a person reads of them in tables and figures.
LABELS: Mapping[str, str] = {
    "full": "full method",
    "no-aiw": "without AIW",
    "no-wia": "without prediction reward",
    "no-predictions": "without predictions",
    "additive": "additive prediction reward",
    "gigpo": "GiGPO",
    "grpo": "GRPO",
    "rloo": "RLOO",
    "ppo": "PPO",
}
#: Symbols of the method for keys that have another name.
_SYMBOLS = {"H": "horizon", "w": "weight", "lambda": "mixture", "lr": "learning_rate", "N": "group_size"}
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")


@dataclass(frozen=True, slots=True)
class Variant:
    """A name and the overrides that it stands for."""

    name: str
    overrides: tuple[str, ...]

    @property
    def label(self) -> str:
        """The name in words."""
        return LABELS.get(self.name, self.name)

    @property
    def slug(self) -> str:
        """The name as a part of a run id: letters, digits, `_` and `-`."""
        return re.sub(r"[^A-Za-z0-9_-]", "-", self.name.replace("=", "_").replace(".", "p"))


def parse_variants(texts: Iterable[str]) -> list[Variant]:
    """Read lists of variants, as `--variants` takes them; see the module's text.

    A comma separates variants. After `name:key=value` further `key=value` belong to that variant; after `key=value`
    further values belong to that sweep. Commas within brackets separate nothing.

    Raises:
        ConfigError: a name, a key or the form is wrong, or two variants have one name. Values are checked with the
            configuration that they make.
    """
    found: list[Variant] = []
    for text in texts:
        found += _parse_list(text)
    if not found:
        raise ConfigError(f"no variant is named; there are {', '.join(known_names())}")
    slugs: dict[str, str] = {}
    for variant in found:
        if variant.slug in slugs:
            same = slugs[variant.slug] == variant.name
            other = "twice" if same else f"beside '{slugs[variant.slug]}', whose runs would have the same ids"
            raise ConfigError(f"variant '{variant.name}' is named {other}; give every variant another name")
        slugs[variant.slug] = variant.name
    return found


def known_names() -> list[str]:
    """Return the names of the registry, then those of the estimators that are none of them."""
    from roleagent.learning.advantages.base import list_estimators

    return [*VARIANTS, *(name for name in list_estimators() if name not in VARIANTS)]


def reference(variants: Sequence[Variant], name: str = "") -> Variant:
    """Return the variant that the others are compared with: the named one, else `full`, else the first.

    Raises:
        ConfigError: there is no variant of this name.
    """
    for variant in variants:
        if variant.name == (name or "full"):
            return variant
    if name:
        raise ConfigError(
            f"--against '{name}' is none of the variants {', '.join(variant.name for variant in variants)}"
        )
    return variants[0]


def _baseline(estimator: str) -> tuple[str, ...]:
    """Overrides of an estimator in the same loop."""
    halves = () if estimator in _METHOD else (*_UNPAID, "agent_in_world.enabled=false")
    return (f"advantage.estimator={estimator}", *halves)


def _parse_list(text: str) -> list[Variant]:
    found: list[Variant] = []
    sweep, known = "", set(known_names())
    for item in _split(text):
        head, equals, value = item.partition("=")
        name, colon, key = head.partition(":")
        if colon:
            if not equals:
                raise ConfigError(f"variant '{item}' must look like name:section.key=value")
            found.append(_free(name.strip(), key.strip(), value, known))
            sweep = ""
        elif equals and found and not sweep and found[-1].name not in known:
            last, key = found.pop(), full_key(head.strip())
            if any(text.startswith(f"{key}=") for text in last.overrides):
                raise ConfigError(f"variant '{last.name}' gives {key} twice; to compare values write {key}=1,2,...")
            found.append(Variant(last.name, (*last.overrides, f"{key}={value}")))
        elif equals:
            sweep = head.strip()
            found.append(_point(sweep, value))
        elif item in known:
            found.append(Variant(item, VARIANTS.get(item) or _baseline(item)))
            sweep = ""
        elif sweep:
            found.append(_point(sweep, item))
        else:
            near = difflib.get_close_matches(item, sorted(known), n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known_names())}"
            raise ConfigError(f"no variant '{item}'; {hint} (or name:key=value, or a sweep key=value,value)")
    return found


def _free(name: str, key: str, value: str, known: set[str]) -> Variant:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"variant name '{name}' must be at most 40 small letters, digits, '-', '_' or '.'")
    if name in known:
        raise ConfigError(f"variant name '{name}' has a meaning of its own; give '{name}:{key}={value}' another name")
    return Variant(name, (f"{full_key(key)}={value}",))


def _point(key: str, value: str) -> Variant:
    value = value.strip()
    if not re.fullmatch(r"[A-Za-z0-9_.+-]{1,40}", value):
        raise ConfigError(f"sweep {key}: '{value}' is no plain value; write it as a variant: name:{key}=...")
    return Variant(f"{key}={value}", (f"{full_key(key)}={value}",))


def full_key(key: str) -> str:
    """Return a key with its section: `alpha` is `advantage.alpha`. One that has a section is returned as it is.

    Raises:
        ConfigError: no section has such a key, or several have.
    """
    if "." in key:
        return key
    keys = _keys()
    short = _SYMBOLS.get(key, key)
    if short in TrainConfig.model_fields and short not in keys:
        return short
    places = keys.get(short, [])
    if len(places) == 1:
        return f"{places[0]}.{short}"
    if places:
        raise ConfigError(f"key '{key}' is in several sections: write {' or '.join(f'{p}.{short}' for p in places)}")
    near = difflib.get_close_matches(key, [*keys, *_SYMBOLS], n=1)
    hint = f"did you mean '{near[0]}'?" if near else "see `roleagent config show`"
    raise ConfigError(f"no setting is called '{key}'; {hint}")


def _keys() -> dict[str, list[str]]:
    """Sections by the name of their keys."""
    keys: dict[str, list[str]] = {}
    for section, field in TrainConfig.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            for name in kind.model_fields:
                keys.setdefault(name, []).append(section)
    return keys


def _split(text: str) -> list[str]:
    """Split at commas that are in no brackets."""
    items, depth = [""], 0
    for char in text:
        depth += (char in "[{(") - (char in "]})")
        if char == "," and depth <= 0:
            items.append("")
        else:
            items[-1] += char
    found = [item.strip() for item in items]
    if "" in found:
        raise ConfigError(f"the list of variants '{text}' has an empty place")
    return found
