"""Errors whose message is one line that says what is wrong, where, and how to mend it."""


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
