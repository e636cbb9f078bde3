"""Checkpoints as versions of a registered model.

A version stores the name of the place where the checkpoint lies, never the weights; aliases (`champion`) move, versions
do not. A server refuses local paths as a source, since it could not serve them: they are stored under a scheme of
their own, and the path itself in the tag `roleagent.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roleagent.errors import TrackingError
from roleagent.tracking.backend import guard
from roleagent.tracking.redaction import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion as MlflowVersion

_ABSENT = frozenset({"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"})  # MLflow gives both for a missing alias


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A registered checkpoint."""

    name: str
    version: str
    uri: str  #: where the checkpoint lies
    run_id: str  #: Role-Agent's run id
    iteration: int  #: -1 when another program registered it
    aliases: tuple[str, ...]


def register(
    client: MlflowClient,
    name: str,
    uri: str,
    *,
    run_id: str,
    iteration: int,
    mlflow_run_id: str,
    remote: bool,
    tags: Mapping[str, str],
    description: str = "",
) -> str:
    """Return the version that stands for this run, iteration and place; make it when there is none."""
    from mlflow.exceptions import MlflowException

    shown = redact(uri)
    wanted = {"roleagent.run_id": run_id, "roleagent.iteration": str(iteration), "roleagent.checkpoint": shown}
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    for known in client.search_model_versions(f"name='{quoted(name)}'"):
        if wanted.items() <= known.tags.items():
            return str(known.version)
    local = "://" not in shown or shown.startswith("file:")
    made = client.create_model_version(
        name,
        source=f"roleagent-store://{shown.removeprefix('file://')}" if remote and local else shown,
        run_id=mlflow_run_id,
        tags={**tags, **wanted},
        description=description,
        await_creation_for=0,
    )
    return str(made.version)


def find(client: MlflowClient, name: str, alias: str) -> ModelVersion | None:
    """Return the version that an alias points to; None when there is none."""
    from mlflow.exceptions import MlflowException

    with guard(f"look up {name}@{alias}"):
        try:
            return describe(client.get_model_version_by_alias(name, alias))
        except MlflowException as error:
            if error.error_code in _ABSENT:
                return None
            raise


def describe(version: MlflowVersion) -> ModelVersion:
    """Turn MLflow's entity into ours."""
    return ModelVersion(
        name=version.name,
        version=str(version.version),
        uri=version.tags.get("roleagent.checkpoint") or version.source or "",
        run_id=version.tags.get("roleagent.run_id", ""),
        iteration=int(version.tags.get("roleagent.iteration", -1)),
        aliases=tuple(version.aliases),
    )


def quoted(text: str) -> str:
    """Return a text that may stand between quotes in MLflow's filter language."""
    if "'" in text or "`" in text or "\\" in text:
        raise TrackingError(f"'{text}' must not contain quotes or backslashes")
    return text
