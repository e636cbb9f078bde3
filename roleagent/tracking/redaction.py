"""Flattening a configuration into MLflow parameters, without secrets.

A key or a value that looks like a credential is masked, and user names and passwords are cut out of URIs. The
rule is by words, so `max_turn_tokens` stays readable while `hub_token` does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

MASK = "***"
_WORDS = frozenset({
    "secret", "secrets", "password", "passwords", "passwd", "pwd", "passphrase", "token", "apikey", "credential",
    "credentials", "authorization", "bearer", "cookie", "signature",
})  # fmt: skip
_PAIRS = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("account", "key"), ("encryption", "key")})
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SPLIT = re.compile(r"[^A-Za-z0-9]+")
# Every repeat is bounded: texts of models and environments come here too, and time must grow with their length alone.
# A secret key may hold a slash, after which a URL parser no longer looks for the `@`.
_USERINFO = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}://)(?:[^/?#\s]{0,500}|[^/:@\s]{0,200}:(?!\d+/)[^@\s]{0,300})@"
)
_QUERY = re.compile(r"(?P<name>[?&;][^?&;=#\s]*)=(?P<value>[^&#\s]*)")
_VALUE = re.compile(
    r"""(?x)
    \b(?:AKIA|ASIA)[0-9A-Z]{16}\b                          # AWS key ids
    | \b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}                    # API keys
    | \b(?:hf|ghp|gho|ghs|glpat|xox[abp])[_-][A-Za-z0-9_-]{16,}
    | \beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*   # JSON web tokens
    | (?i:\b(?:bearer|basic)\s+)[A-Za-z0-9+/=._-]{12,}
    | -----BEGIN[ A-Z]*PRIVATE\ KEY-----[\s\S]*
    """
)


def looks_secret(key: str) -> bool:
    """Whether the name of a setting says that its value is a credential."""
    words = [word.lower() for part in _SPLIT.split(key) for word in _CAMEL.split(part) if word]
    if any(word in _WORDS for word in words):
        return True
    return any(pair in _PAIRS for pair in pairwise(words))


def redact(text: str) -> str:
    """Mask credentials inside a text: key-like strings, URI user info, secret query parameters."""
    text = _USERINFO.sub(lambda found: found["scheme"] + MASK + "@", text)
    text = _QUERY.sub(lambda found: f"{found['name']}={MASK if looks_secret(found['name']) else found['value']}", text)
    return _VALUE.sub(MASK, text)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Turn nested settings into `section.key` -> text, in order, with credentials masked.

    Lists and tuples become one comma-separated text; `None` becomes an empty one.
    """
    flat: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= {
                inner: MASK if looks_secret(str(key)) else text for inner, text in flatten(value, f"{name}.").items()
            }
        elif looks_secret(str(key)):
            flat[name] = MASK if value else ""
        else:
            flat[name] = redact(_text(value))
    return flat


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(item) for item in value)
    return str(value)
