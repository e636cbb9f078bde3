"""Flow runs whose machine died: found by their missing heartbeats and marked Crashed.

A process worker that is killed cannot report the end of its runs: they would stay Running for ever and keep their
place in the pool's concurrency. Every flow run sends a heartbeat event (every `HEARTBEAT_SECONDS`, by
PREFECT_FLOWS_HEARTBEAT_FREQUENCY); this automation expects, after each heartbeat, another one or an end within
`SILENCE_SECONDS`, and marks the run Crashed if there is none. Source: Prefect's guide "How to detect and respond to
zombie flows", in Prefect's REST form, so that nothing has to import Prefect here.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any

NAME = "Crash runs without a heartbeat"
HEARTBEAT_SECONDS = 30  # the shortest that Prefect takes
SILENCE_SECONDS = 120  # three heartbeats may be lost

_ANSWER_SECONDS = 30.0
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed")


def automation(silence_seconds: int = SILENCE_SECONDS) -> dict[str, Any]:
    """Return the automation as Prefect's API takes it."""
    return {
        "name": NAME,
        "description": "A run that neither beats nor ends has lost its process.",
        "enabled": True,
        "trigger": {
            "type": "event",
            "posture": "Proactive",
            "match": {"prefect.resource.id": ["prefect.flow-run.*"]},
            "after": ["prefect.flow-run.heartbeat"],
            "expect": ["prefect.flow-run.heartbeat", *(f"prefect.flow-run.{end}" for end in _ENDS)],
            "for_each": ["prefect.resource.id"],
            "threshold": 1,
            "within": silence_seconds,
        },
        "actions": [
            {
                "type": "change-flow-run-state",
                "state": "CRASHED",
                "message": f"No heartbeat for {silence_seconds} seconds: the run's process is gone.",
            }
        ],
    }


def install(api: str, silence_seconds: int = SILENCE_SECONDS) -> str:
    """Create the automation, or bring it up to date; return its id. `api` ends with `/api`."""
    wanted = automation(silence_seconds)
    known = request(api, "POST", "/automations/filter", {"automations": {"name": {"any_": [NAME]}}})
    if known:
        identifier = str(known[0]["id"])
        request(api, "PUT", f"/automations/{identifier}", wanted)
        return identifier
    return str(request(api, "POST", "/automations/", wanted)["id"])


def sweep(api: str, pool: str) -> list[str]:
    """Mark the unfinished runs of a pool without workers, and their subflows, as Crashed; return their names.

    Heartbeats sent before the server was stopped are forgotten by its automation, so this is done at its start.
    """
    unfinished = {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}}
    query: dict[str, Any] = {"flow_runs": unfinished, "work_pools": {"name": {"any_": [pool]}}}
    names = []
    state = {"type": "CRASHED", "name": "Crashed", "message": "The machine's services were stopped while it ran."}
    while lost := request(api, "POST", "/flow_runs/filter", query):
        for run in lost:
            request(api, "POST", f"/flow_runs/{run['id']}/set_state", {"state": state, "force": True})
            names.append(str(run["name"]))
        query = {"flow_runs": {**unfinished, "parent_flow_run_id": {"any_": [run["id"] for run in lost]}}}
    return names


def request(api: str, method: str, path: str, body: Any = None) -> Any:
    """Send JSON to Prefect's API and return the JSON that it answers, None for an empty answer.

    On a busy machine the server answers 503 while its SQLite database is locked, or is silent; Prefect's clients try
    again then, and so does this. A request that was answered too late may thus be made twice.

    Raises:
        OSError: it refused, or did not answer any try; the message says what was asked.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    for patience in (0.5, 1.0, 2.0, 4.0, None):
        message = urllib.request.Request(f"{api}{path}", data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(message, timeout=_ANSWER_SECONDS) as response:
                text = response.read()
            return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE or patience is None:
                raise
        except OSError as error:
            timed_out = isinstance(getattr(error, "reason", error), TimeoutError)
            if not timed_out or patience is None:
                reason = f"no answer within {_ANSWER_SECONDS:g} s" if timed_out else error
                raise OSError(f"the Prefect server at {api} did not take {method} {path}: {reason}") from error
        time.sleep(patience)
    return None
