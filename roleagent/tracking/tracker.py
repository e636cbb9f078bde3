"""One training run's record in MLflow.

A tracker writes what the loop has committed. Every call can be repeated: the MLflow run is found again by its tag
`roleagent.run_id`; an iteration's metrics go in one batch that carries the point `iteration` = step, written in the
same transaction, so the history of that point says which iterations are there and a repeat is skipped (MLflow keeps
every differing value of a step for ever and cannot delete one). Checkpoints are not uploaded: tags and model versions
name where they lie.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from roleagent import __version__
from roleagent.config.models import TrackingConfig
from roleagent.errors import TrackingError
from roleagent.tracking import registry
from roleagent.tracking.backend import connect, guard, resolve_backend
from roleagent.tracking.redaction import flatten
from roleagent.tracking.registry import ModelVersion
from roleagent.tracking.traces import episode_spans, to_mlflow, trace_id
from roleagent.tracking.values import MAX_VALUE, key_of, numbers, pool_digest, value_of
from roleagent.types import Diagnosis, Task, Trajectory

if TYPE_CHECKING:
    from mlflow.entities import Run

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]
_MARKER = "iteration"
_MAX_METRICS = 1000  # MLflow's limit of one batch
_MAX_PARAMS = 100
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # the web interface opens on runs, not on traces
_LOCAL = {"mlflow.source.type": "LOCAL"}


class Tracker:
    """Writes one run to MLflow. Every method raises TrackingError, in one line, when the store does not answer."""

    def __init__(self, config: TrackingConfig, home: Path) -> None:
        """Resolve the store and check that it answers (5 s at most for a server).

        Args:
            config: the run's tracking section.
            home: ROLEAGENT_HOME, where the local database and its artifacts lie when no server is named.
        """
        self._config = config
        self._backend = resolve_backend(config.uri, home)
        self._client = connect(self._backend)
        self._run: Run | None = None
        self._run_id = ""
        self._logged: set[int] = set()

    @property
    def uri(self) -> str:
        """The tracking store, without credentials."""
        return self._backend.shown

    @property
    def mlflow_run_id(self) -> str:
        """MLflow's own id of the run; "" before `start_run`."""
        return self._run.info.run_id if self._run else ""

    @property
    def run_url(self) -> str:
        """The run's page in the web interface, or "" for a local database."""
        if self._run is None or not self._backend.remote:
            return ""
        return f"{self._backend.shown}/#/experiments/{self._run.info.experiment_id}/runs/{self._run.info.run_id}"

    @property
    def logged_iterations(self) -> frozenset[int]:
        """Iterations whose metrics are in MLflow."""
        return frozenset(self._logged)

    def start_run(
        self,
        run_id: str,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str] | None = None,
        *,
        parent: str = "",
    ) -> str:
        """Create the run, or take up the one tagged with `run_id`; return MLflow's run id.

        Args:
            run_id: Role-Agent's run id.
            name: shown in the web interface.
            params: may be nested; credentials are masked. On a resumed run a parameter that changed keeps its first
                value (MLflow forbids another) and the new one becomes a tag `resumed.<key>`.
            tags: of the run; credentials in values are masked.
            parent: MLflow id of the run under which this one is shown.
        """
        labels = {**(tags or {}), **({"mlflow.parentRunId": parent} if parent else {})}
        with guard("start the run"):
            experiment = self._experiment()
            found = self._client.search_runs(
                [experiment], filter_string=f"tags.`roleagent.run_id` = '{registry.quoted(run_id)}'", max_results=1
            )
            if found:
                run = found[0]
                self._client.update_run(run.info.run_id, status="RUNNING")
                history = self._client.get_metric_history(run.info.run_id, _MARKER)
                self._logged = {int(point.step) for point in history}
            else:
                tags = {"roleagent.run_id": run_id, "mlflow.source.name": f"roleagent {__version__}", **_LOCAL}
                run = self._client.create_run(experiment, tags=tags, run_name=name)
                self._logged = set()
            self._run, self._run_id = run, run_id
            self._log_settings(run, flatten(params), labels)
        return str(run.info.run_id)

    def log_iteration(self, iteration: int, metrics: Mapping[str, Any], at: float | None = None) -> bool:
        """Write an iteration's numbers in one batch; return False when they are there already.

        Args:
            iteration: becomes the step.
            metrics: numbers; nested mappings become `outer/inner`; what is not a finite number is left out, and so
                is `phase_seconds` where its numbers are there as `seconds/...` too.
            at: seconds since the epoch of the commit; now when not given.
        """
        if iteration in self._logged:
            return False
        run = self._active()
        from mlflow.entities import Metric, RunTag

        stamp = int((time.time() if at is None else at) * 1000)
        doubled = "phase_seconds" if any(key.startswith("seconds/") for key in metrics) else ""
        values = numbers({key: value for key, value in metrics.items() if key not in {_MARKER, doubled}})
        values[_MARKER] = float(iteration)  # last: where it is, everything before it is
        points = [Metric(key, value, stamp, iteration) for key, value in values.items()]
        tags = [RunTag("roleagent.last_iteration", str(iteration))]
        with guard(f"log iteration {iteration}"):
            for start in range(0, len(points), _MAX_METRICS):
                last = start + _MAX_METRICS >= len(points)
                self._client.log_batch(
                    run.info.run_id, metrics=points[start : start + _MAX_METRICS], tags=tags if last else []
                )
        self._logged.add(iteration)
        return True

    def log_summary(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write numbers that a run has once, outside its iterations; a value that is there already is not repeated.

        Args:
            metrics: numbers, as in :meth:`log_iteration`.
            step: the iteration that they speak of.
        """
        run = self._active()
        from mlflow.entities import Metric

        stamp = int(time.time() * 1000)
        with guard("log the summary"):
            known = self._client.get_run(run.info.run_id).data.metrics
            fresh = {key: value for key, value in numbers(metrics).items() if known.get(key) != value}
            points = [Metric(key, value, stamp, step) for key, value in fresh.items()]
            for start in range(0, len(points), _MAX_METRICS):
                self._client.log_batch(run.info.run_id, metrics=points[start : start + _MAX_METRICS])

    def sync(self, history: Iterable[Mapping[str, Any]]) -> list[int]:
        """Write every committed iteration that MLflow lacks; return which ones that were."""
        return [int(row["iteration"]) for row in history if self.log_iteration(int(row["iteration"]), row)]

    def log_datasets(self, pools: Mapping[str, Sequence[Task]]) -> None:
        """Record task pools (`train`, `heldout`, ...) as the run's datasets, by a digest of their task ids."""
        run = self._active()
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = []
        for context, tasks in pools.items():
            environment = tasks[0].environment if tasks else "empty"
            dataset = Dataset(
                name=f"{environment}-{context}",
                digest=pool_digest(tasks),
                source_type="roleagent",
                source=f'{{"environment": "{environment}", "split": "{context}"}}',
                profile=f'{{"tasks": {len(tasks)}, "task_types": {len({task.task_type for task in tasks})}}}',
            )
            inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", context)]))
        with guard("log the datasets"):
            self._client.log_inputs(run.info.run_id, datasets=inputs)

    def log_traces(
        self, trajectories: Sequence[Trajectory], diagnoses: Mapping[str, Diagnosis] | None = None
    ) -> list[str]:
        """Write the first `tracking.traces` episodes as traces linked to the run; return the ids of all of them.

        Args:
            trajectories: in the order of preference.
            diagnoses: by trajectory id.
        """
        run = self._active()
        from mlflow.exceptions import MlflowException
        from mlflow.tracing.client import TracingClient

        client = TracingClient(self._backend.uri)
        written = []
        with guard("log traces"):
            for trajectory in trajectories[: self._config.traces]:
                identifier = trace_id(self._run_id, trajectory.trajectory_id)
                written.append(identifier)
                try:
                    client.get_trace_info(identifier)
                except MlflowException as error:
                    if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                        raise
                else:
                    continue
                diagnosis = (diagnoses or {}).get(trajectory.trajectory_id)
                info, spans = to_mlflow(
                    identifier,
                    episode_spans(trajectory, diagnosis),
                    trajectory,
                    diagnosis,
                    experiment_id=run.info.experiment_id,
                    mlflow_run_id=run.info.run_id,
                    started_ms=int(time.time() * 1000),
                )
                client.log_spans(run.info.experiment_id, spans)
                client.start_trace(info)  # last: a trace without it is written again
        return written

    def wants_traces(self, iteration: int) -> bool:
        """Whether this iteration's episodes should be logged as traces."""
        return self._config.traces > 0 and iteration % self._config.traces_every == 0

    def log_text(self, text: str, name: str) -> None:
        """Write a text as the artifact `name`; a repeat replaces it."""
        with guard(f"log {name}"):
            self._client.log_text(self._active().info.run_id, text, name)

    def log_report(self, folder: Path) -> None:
        """Upload a report's folder (see `write_report`), its figures as `figures/` too, and show its text.

        The text's beginning becomes the run's description; the pictures are the files, they are not drawn again.
        """
        run = self._active()
        text = (folder / "report.md").read_text(encoding="utf-8")
        summary = text.partition("\n## Figures")[0]
        with guard("log the report"):
            self._client.log_artifacts(run.info.run_id, str(folder), "report")
            self._client.log_artifacts(run.info.run_id, str(folder / "figures"), "figures")
            self._client.set_tag(run.info.run_id, "mlflow.note.content", summary[:MAX_VALUE])

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run; credentials in values are masked."""
        run = self._active()
        from mlflow.entities import RunTag

        with guard("set tags"):
            self._client.log_batch(run.info.run_id, tags=[RunTag(k, value_of(v)) for k, v in tags.items()])

    def set_checkpoint(self, iteration: int, uri: str, *, best: bool = False) -> None:
        """Tell the run where its newest (or best) checkpoint lies."""
        kind = "best_checkpoint" if best else "checkpoint"
        self.set_tags({f"roleagent.{kind}": uri, f"roleagent.{kind}_iteration": str(iteration)})

    def register_model(
        self,
        name: str,
        uri: str,
        iteration: int,
        *,
        alias: str | None = None,
        tags: Mapping[str, str] | None = None,
        description: str = "",
    ) -> ModelVersion:
        """Register a checkpoint as a model version; one that this run has already registered is found again.

        Args:
            name: the registered model.
            uri: where the checkpoint lies. Only the name of the place is stored.
            iteration: the iteration that the checkpoint belongs to.
            alias: moved to this version, for example `champion`.
            tags: of the version.
            description: of the version.
        """
        labels = {key: value_of(value) for key, value in (tags or {}).items()}
        with guard(f"register model {name}"):
            version = registry.register(
                self._client,
                name,
                uri,
                run_id=self._run_id,
                iteration=iteration,
                mlflow_run_id=self._active().info.run_id,
                remote=self._backend.remote,
                tags=labels,
                description=description,
            )
            if alias:
                self._client.set_registered_model_alias(name, alias, version)
            return registry.describe(self._client.get_model_version(name, version))

    def find_model(self, name: str, alias: str = "champion") -> ModelVersion | None:
        """Return the version that an alias points to; None when there is none. Needs no started run."""
        return registry.find(self._client, name, alias)

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Move an alias to a version. Needs no started run."""
        with guard(f"move {name}@{alias}"):
            self._client.set_registered_model_alias(name, alias, version)

    def end(self, status: RunStatus = "FINISHED") -> None:
        """Close the run. It can be taken up again by `start_run`."""
        with guard("end the run"):
            self._client.set_terminated(self._active().info.run_id, status=status)
        self._run = None

    def _active(self) -> Run:
        if self._run is None:
            raise TrackingError("the tracker has no run: call start_run first")
        return self._run

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        # A database may later be served by a server that keeps artifacts elsewhere: an experiment has one place.
        name = self._config.experiment + ("-local" if self._backend.artifacts else "")
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            place = f"{self._backend.artifacts}/{name}" if self._backend.artifacts else None
            try:
                return str(self._client.create_experiment(name, artifact_location=place, tags=_KIND))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                experiment = self._client.get_experiment_by_name(name)  # another process was faster
        if experiment is None or experiment.lifecycle_stage != "active":
            raise TrackingError(f"experiment '{name}' was deleted in MLflow; restore it or set tracking.experiment")
        return str(experiment.experiment_id)

    def _log_settings(self, run: Run, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        from mlflow.entities import Param, RunTag

        known = run.data.params
        fresh = {key_of(key): value[:MAX_VALUE] for key, value in params.items()}
        changed = {f"resumed.{key}": value for key, value in fresh.items() if key in known and known[key] != value}
        new = [Param(key, value) for key, value in fresh.items() if key not in known]
        labels = [RunTag(key, value_of(value)) for key, value in {**tags, **changed}.items()]
        for start in range(0, len(new), _MAX_PARAMS):
            self._client.log_batch(run.info.run_id, params=new[start : start + _MAX_PARAMS])
        for start in range(0, len(labels), _MAX_PARAMS):
            self._client.log_batch(run.info.run_id, tags=labels[start : start + _MAX_PARAMS])
