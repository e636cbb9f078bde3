"""Prefect flows: the order of tasks, schedules and artifacts."""

from roleagent.policy.threads import limit_spinning

limit_spinning()  # a worker imports a flow before anything loads torch
