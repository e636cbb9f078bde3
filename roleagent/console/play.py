"""Playing a task: a person at the keyboard, or a policy that is watched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.panel import Panel
from rich.table import Table

from roleagent.console.screen import escape
from roleagent.environments.base import Environment
from roleagent.environments.registry import make_environment
from roleagent.errors import ConfigError
from roleagent.types import Task

if TYPE_CHECKING:
    from rich.console import Console

    from roleagent.config import TrainConfig
    from roleagent.loop.worker import Worker

_HELP = "Type an action, `?` for those that are possible now, or `quit`."


def choose_task(environment: Environment, task_id: str) -> Task:
    """Return the task of an id, or the first held-out one.

    Raises:
        ConfigError: neither split has such a task.
    """
    pools = {split: environment.tasks(split) for split in ("heldout", "train")}
    if not task_id:
        return pools["heldout"][0]
    for pool in pools.values():
        for task in pool:
            if task.task_id == task_id:
                return task
    raise ConfigError(
        f"{environment.name} has no task '{task_id}'; its ids look like {pools['heldout'][0].task_id}, "
        f"{pools['train'][0].task_id}"
    )


def play_person(console: Console, config: TrainConfig, task_id: str) -> None:
    """Let a person play one task."""
    environment = make_environment(config.environment.name, **config.environment.options)
    task = choose_task(environment, task_id)
    goal, observation = environment.reset(task.task_id)
    console.print(Panel(f"Your task is to: {escape(goal)}\n\n{escape(observation.text)}", title=escape(task.task_id)))
    console.print(_HELP, style="dim")
    for step in range(1, config.environment.max_steps + 1):
        action = ""
        while not action:
            try:
                action = console.input(f"[bold]{step}>[/bold] ").strip()
            except EOFError:
                action = "quit"
            if action == "?":
                console.print(escape("\n".join(observation.admissible)))
                action = ""
        if action == "quit":
            return
        outcome = environment.step(action)
        observation = outcome.observation
        console.print(escape(observation.text), style=None if outcome.valid else "yellow")
        if outcome.done:
            console.print(
                "[green]Done: the task is solved.[/green]" if outcome.success else "[red]The episode failed.[/red]"
            )
            return
    console.print(f"[yellow]{config.environment.max_steps} steps are over.[/yellow]")


def watch_policy(console: Console, worker: Worker, task_id: str, *, temperature: float, seed: int) -> None:
    """Let a run's newest policy play one task, and show its predictions beside what happened."""
    from roleagent.loop.evaluating import committed_version
    from roleagent.rollout.loop import collect
    from roleagent.rollout.settings import settings_from_config
    from roleagent.world_in_agent.matching import match

    version = committed_version(worker, -1)
    task = choose_task(worker.environment, task_id)
    engine = worker.engine(version)
    (episode,) = collect(
        engine,
        worker.policy_tokenizer,
        worker.make_environment,
        [(task, 0)],
        settings_from_config(worker.config, temperature=temperature, max_context=engine.max_context),
        iteration=0,
        policy_version=version,
        seed=seed,
        purpose="play",
    )
    first = episode.states[0]
    console.print(Panel(f"Task: {escape(episode.goal)}\n\n{escape(first)}", title=escape(task.task_id)))
    table = Table("step", "thought", "action", "predicted", "happened", "match")
    unit = worker.config.world_in_agent.matching
    for step, after in zip(episode.steps, episode.states[1:], strict=True):
        predicted = step.predictions[0] if step.predictions else ""
        table.add_row(
            str(step.index),
            escape(step.reasoning),
            escape(step.action or "(unreadable turn)"),
            escape(predicted),
            escape(after),
            f"{match(predicted, after, unit):.2f}" if step.predictions else "",
        )
    console.print(table)
    verdict = "[green]solved[/green]" if episode.success else "[red]not solved[/red]"
    console.print(
        f"{verdict} after {len(episode.steps)} steps ({escape(episode.stop_reason.value)}), policy version {version}"
    )
