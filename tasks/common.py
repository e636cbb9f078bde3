"""What every task shares: the reference of a run, and how a phase is retried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.tasks import exponential_backoff
from pydantic import BaseModel, ConfigDict

from roleagent.errors import RoleAgentError
from roleagent.loop.worker import Worker, get_worker

P = ParamSpec("P")
R = TypeVar("R")


class RunRef(BaseModel):
    """Where a run is: all that a task needs to work on any machine."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    store_uri: str
    endpoint_url: str = ""

    def worker(self) -> Worker:
        """Return this process's worker for the run: warm if it has worked on it before."""
        return get_worker(self.run_id, self.store_uri, self.endpoint_url)


def may_help(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Whether a retry may mend what made a task fail."""
    # A retry mends a lost connection or a full queue; it does not mend bad data or a bad configuration.
    try:
        state.result(raise_on_failure=True)
    except RoleAgentError as error:
        return error.transient
    except Exception:
        return True
    return False


def phase(
    name: str, *, timeout_seconds: float | None = 3600, retries: int = 2
) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Return the decorator of a phase: named after phase and iteration, retried with jitter, bounded in time.

    A phase that runs beside another one, in a thread, has no time-out: Prefect cannot interrupt a thread. Tags are left
    out: each costs a request for a concurrency slot before the task may begin.
    """
    return task(
        name=name,
        task_run_name=f"{name} {{n}}",
        retries=retries,
        retry_delay_seconds=exponential_backoff(backoff_factor=2),
        retry_jitter_factor=0.5,
        retry_condition_fn=may_help,
        timeout_seconds=timeout_seconds,
        cache_policy=NO_CACHE,
        persist_result=False,
    )
