"""Errors whose message is one line that says what is wrong, where, and how to mend it."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"^\[Errno -?\d+\] ")  # of the operating system: it says nothing that the words do not


class RoleAgentError(Exception):
    """Base of every error that a user can mend. The CLI prints it as one line and exits with status 2."""

    transient = False  #: whether doing the same again, a little later, may help


class ConfigError(RoleAgentError):
    """A configuration value is missing, unknown or out of bounds."""


class EnvironmentFault(RoleAgentError):
    """An environment broke its contract (see `roleagent.environments.checker`)."""


class PolicyError(RoleAgentError):
    """A model or tokenizer cannot be loaded or used."""


class StorageError(RoleAgentError):
    """The object store refused, lost or corrupted something."""


class CommitConflict(StorageError):
    """Another process has already committed this iteration."""


class DataQualityError(RoleAgentError):
    """A critical expectation failed; the offending rows were saved."""


class BankError(RoleAgentError):
    """The failure bank cannot be opened, or was built with another embedding model."""


class TrackingError(RoleAgentError):
    """The experiment tracker does not answer, or refuses a record."""


def shortened(text: str, limit: int) -> str:
    """Fold a text into one line of at most `limit` characters, cut after a sentence, or else between two words."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    kept = line[: limit - len(" ...") + 1]  # a space at its end is where it may be cut
    sentence, space = kept.rfind(". ") + 1, kept.rfind(" ")
    end = sentence if sentence > limit // 2 else space
    return f"{kept[:end].rstrip(' ,;:')} ..." if end > 0 else f"{kept[:-1]} ..."


def innermost(error: BaseException) -> str:
    """Return in one line what the first error of a chain says: libraries wrap a plain reason in errors of their own."""
    while True:
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is None:
            break
        error = before
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(_NUMBER.sub("", str(said)).split()) or type(error).__name__
