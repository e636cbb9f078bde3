"""Prefect flows: the order of tasks, schedules and artifacts."""
