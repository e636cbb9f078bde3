"""Playing a task: a person at the keyboard, or a policy that is watched."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from rich.columns import Columns
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from roleagent.console.screen import escape, printable
from roleagent.environments.base import Environment
from roleagent.environments.registry import make_environment
from roleagent.errors import ConfigError
from roleagent.seeding import derive
from roleagent.types import Step, Task

if TYPE_CHECKING:
    from rich.console import Console

    from roleagent.config import TrainConfig
    from roleagent.loop.worker import Worker
    from roleagent.world_in_agent.matching import MatchUnit

_HELP = "Type an action, `?` for those that are possible now, or `quit`."
_GOOD, _FAIR = 0.9, 0.5  # matches from which a prediction is shown as right, or as partly right


def choose_task(environment: Environment, task_id: str, seed: int = 0) -> Task:
    """Return the task of an id, or the held-out one that the seed draws.

    Raises:
        ConfigError: neither split has such a task.
    """
    pools = {split: environment.tasks(split) for split in ("heldout", "train")}
    if not task_id:
        return pools["heldout"][derive(seed, "task to play") % len(pools["heldout"])]
    for pool in pools.values():
        for task in pool:
            if task.task_id == task_id:
                return task
    raise ConfigError(
        f"{environment.name} has no task '{task_id}'; its ids look like {pools['heldout'][0].task_id}, "
        f"{pools['train'][0].task_id}"
    )


def play_person(console: Console, config: TrainConfig, task_id: str, seed: int = 0) -> None:
    """Let a person play one task."""
    environment = make_environment(config.environment.name, **config.environment.options)
    task = choose_task(environment, task_id, seed)
    goal, observation = environment.reset(task.task_id)
    console.print(_opening(task.task_id, goal, observation.text))
    console.print(_HELP, style="dim")
    for step in range(1, config.environment.max_steps + 1):
        action = _ask(console, step, observation.admissible)
        if not action:
            return
        outcome = environment.step(action)
        observation = outcome.observation
        console.print(escape(observation.text), style=None if outcome.valid else "yellow")
        if outcome.done:
            console.print(f"[green]Solved[/] in {step} steps." if outcome.success else "[red]The episode failed.[/]")
            return
    console.print(f"[yellow]{config.environment.max_steps} steps are over.[/]")


def _ask(console: Console, step: int, admissible: tuple[str, ...]) -> str:
    """Return what the person does; empty to stop."""
    while True:
        try:
            action = console.input(f"[bold cyan]{step}>[/] ").strip()
        except EOFError:
            console.print()
            return ""
        if action == "?":
            console.print(Columns([escape(text) for text in admissible], padding=(0, 3), column_first=True))
        elif action:
            return "" if action == "quit" else action


def watch_policy(console: Console, worker: Worker, task_id: str, *, temperature: float, seed: int) -> None:
    """Let a run's newest policy play one task, and show its predictions beside what happened."""
    from roleagent.loop.evaluating import committed_version
    from roleagent.rollout.loop import collect
    from roleagent.rollout.settings import settings_from_config

    version = committed_version(worker, -1)
    task = choose_task(worker.environment, task_id, seed)
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
    console.print(_opening(task.task_id, episode.goal, episode.states[0]))
    unit = worker.config.world_in_agent.matching
    for step, after in zip(episode.steps, episode.states[1:], strict=True):
        console.print(step_view(step, after, unit))
    verdict = "[green]Solved[/]" if episode.success else "[red]Not solved[/]"
    console.print(
        f"{verdict} in {len(episode.steps)} steps ({escape(episode.stop_reason.value.replace('_', ' '))}) by policy "
        f"version {version} of {escape(worker.run_id)}, temperature {temperature:g}, seed {seed}."
    )


def step_view(step: Step, after: str, unit: MatchUnit) -> Table:
    """Return one step: thought, action, the next state as it was predicted and as it came, and how well they match."""
    from roleagent.world_in_agent.matching import match

    view = Table.grid(padding=(0, 2))
    view.add_column(style="bold cyan", justify="right", width=3)
    view.add_column(style="dim", width=8)
    view.add_column(overflow="fold")
    rows: list[tuple[str, Text]] = []
    if step.reasoning:
        rows.append(("thinks", Text(printable(step.reasoning), style="italic")))
    action = Text(printable(step.action), style="bold") if step.action else Text("(unreadable turn)", style="red")
    if step.action and not step.valid_action:
        action.append("  (not possible)", style="red")
    rows.append(("does", action))
    if step.predictions:
        predicted = step.predictions[0]
        value = match(predicted, after, unit)
        colour = "green" if value >= _GOOD else "yellow" if value >= _FAIR else "red"
        rows.append(("expects", Text(printable(predicted) or "(nothing)")))
        rows.append(("sees", Text.assemble(differences(predicted, after), (f"  match {value:.2f}", colour))))
    else:
        rows.append(("sees", Text(printable(after))))
    for place, (label, text) in enumerate(rows):
        view.add_row(str(step.index) if place == 0 else "", label, text)
    view.add_row()
    return view


def differences(predicted: str, seen: str) -> Text:
    """Return what was seen, with the words underlined that were not predicted at their place."""
    expected, words = printable(predicted).split(), printable(seen).split()
    shown = Text()
    matcher = SequenceMatcher(None, [word.casefold() for word in expected], [word.casefold() for word in words], False)
    for kind, _, _, begin, end in matcher.get_opcodes():
        part = " ".join(words[begin:end])
        if part:
            shown.append(" " if shown else "")
            shown.append(part, style="" if kind == "equal" else "underline yellow")
    return shown


def _opening(task_id: str, goal: str, observation: str) -> Panel:
    text = Text.assemble(("Your task is to: ", "dim"), (printable(goal), "bold"), f"\n\n{printable(observation)}")
    return Panel(text, title=escape(task_id), title_align="left", border_style="cyan", expand=False)
