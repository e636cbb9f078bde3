"""The command line. Every command is a few lines over the library; errors a person can mend are one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roleagent.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from roleagent.config import TrainConfig

app = typer.Typer(
    name="roleagent",
    help="Train LLM agents by letting one model play both the agent and its environment.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # a traceback shows no values: some are secrets
)
runs_app = typer.Typer(help="List runs, or show one.", no_args_is_help=False, invoke_without_command=True)
bank_app = typer.Typer(help="Look into a run's failure bank.", no_args_is_help=True)
config_app = typer.Typer(help="Show presets and configurations.", no_args_is_help=True)
data_app = typer.Typer(help="Bring the games of benchmarks onto this machine.", no_args_is_help=True)
app.add_typer(runs_app, name="runs")
app.add_typer(bank_app, name="bank")
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")

Preset = Annotated[str, typer.Option("--preset", "-p", help="A preset's name, or a path to a YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="Override a key: --set learner.learning_rate=1e-4.")
]
RunArgument = Annotated[str, typer.Argument(help="A run id, its beginning if unique, or `latest`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


# Typer does not export the base of its usage errors.
_UsageError: Any = typer.BadParameter.__mro__[1]


def main() -> None:
    """Run the command line; see `roleagent.console.guard` for the exit statuses."""
    from roleagent.console.guard import end, guard, keep_quiet
    from roleagent.loop.servers import bypass_proxies
    from roleagent.policy.threads import limit_spinning

    limit_spinning()
    bypass_proxies()
    keep_quiet()
    end(guard(lambda: run(sys.argv[1:])))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit status; errors are raised.

    Raises:
        ConfigError: the arguments are not those of a command.
    """
    try:
        with typer.main.get_command(app).make_context("roleagent", arguments) as context:
            context.command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except _UsageError as error:
        message = error.format_message()
        if not message:  # the help was asked for by giving no command, and is printed
            return 2
        path = error.ctx.command_path if error.ctx else "roleagent"
        raise ConfigError(f"{message[:1].lower()}{message[1:].rstrip('.')}; see `{path} --help`") from error
    return 0


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"roleagent {version('roleagent')}")
        raise typer.Exit


@app.callback()
def _whole(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    preset: Preset = "quickstart",
    overrides: Overrides = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of every random draw.")] = None,
    run_id: Annotated[
        str, typer.Option(help="Id of the new run; empty for a fresh one. To go on with a run: `roleagent resume`.")
    ] = "",
) -> None:
    """Train a policy."""
    from roleagent.config import load_config
    from roleagent.loop import runs

    changes = list(overrides or [])
    if seed is not None:
        changes.append(f"seed={seed}")
    config = load_config(preset, changes)
    found = runs.existing_run(config, run_id)
    if found is not None:
        runs.check_same(found, config)
        runs.check_idle(found)
    _train(config, run_id)


@app.command()
def resume(run: RunArgument = "latest") -> None:
    """Go on with a run from its newest valid commit."""
    from roleagent.loop import runs

    handle = runs.find_run(run)
    runs.check_idle(handle)
    _train(handle.worker().config, handle.run_id)


@app.command()
def ablate(
    preset: Preset = "quickstart",
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variants", "-v", help="full,no-aiw,no-wia,gigpo,grpo; an estimator; name:key=value,...; key=value,value."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each variant; the first has the preset's seed.")] = 3,
    overrides: Overrides = None,
    parallel: Annotated[int, typer.Option(help="Runs side by side; 0: as many as there are cores or GPUs for.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads of each run; 0: an equal share of the cores.")] = 0,
    against: Annotated[str, typer.Option(help="The variant to compare with; `full`, or the first, by default.")] = "",
    name: Annotated[str, typer.Option(help="Id of the ablation; by default it follows from the configuration.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be run, and run nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train variants with several seeds and compare them. The same command goes on where it was stopped."""
    from roleagent.ablation.machine import gpus, share
    from roleagent.ablation.plan import Request, check_plan, make_plan, plan_record
    from roleagent.console.ablation import plan_panel, results_panel
    from roleagent.console.flows import watched_ablation
    from roleagent.console.show import print_json

    default = Request()
    request = Request(preset, tuple(variants or default.variants), seeds, tuple(overrides or ()), against, name)
    plan = make_plan(request)
    devices = gpus() if plan.base.policy.device != "cpu" else ()
    slots = share(len(plan.members), parallel=parallel, threads=threads, devices=devices)
    if dry_run:
        check_plan(plan)
        if as_json:
            print_json(plan_record(plan))
        else:
            _show(plan_panel(plan, slots))
        return
    results = watched_ablation(plan, parallel=parallel, threads=threads)
    if as_json:
        print_json(results)
    else:
        _show(results_panel(results, {variant.name: variant.label for variant in plan.variants}))
    if results["failed"]:
        raise typer.Exit(1)


@app.command()
def evaluate(
    run: RunArgument = "latest",
    iteration: Annotated[int, typer.Option(min=-1, help="Policy version; -1 for the newest.")] = -1,
    tasks: Annotated[int | None, typer.Option(min=1, help="Held-out tasks; 200 by default, or all there are.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=5, help="Sampling temperature, 0 for greedy; the run's by default.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the sampling; the run's by default.")] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", "-p", help="Evaluate this preset's model, not a run.")
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Play held-out tasks and report success by task type: with a run's policy, or with the model of a preset."""
    from roleagent.config import load_config
    from roleagent.console.show import evaluation_table, print_json
    from roleagent.loop import runs
    from roleagent.loop.evaluating import evaluate_model, evaluate_run

    if preset is not None:
        if run != "latest" or iteration != -1:
            raise ConfigError("a run and --preset were both given; evaluate one of them")
        config = load_config(preset, overrides or [])
        result = evaluate_model(config, tasks=tasks, temperature=temperature, seed=seed)
    elif overrides:
        raise ConfigError("--set changes a preset; give --preset NAME as well")
    else:
        worker = runs.find_run(run).worker()
        result = evaluate_run(worker, iteration=iteration, tasks=tasks, temperature=temperature, seed=seed)
    if as_json:
        print_json(result.as_dict())
    else:
        _show(evaluation_table(result))


@runs_app.callback()
def list_runs(context: typer.Context) -> None:
    """List runs, newest last."""
    if context.invoked_subcommand is None:
        from roleagent.console.show import runs_table

        _show(runs_table())


@runs_app.command("show")
def show_run(run: RunArgument = "latest", as_json: AsJson = False) -> None:
    """Show what a run did."""
    from roleagent.console.run_panel import run_panel
    from roleagent.console.show import print_json
    from roleagent.loop import publishing, runs

    worker = runs.find_run(run).worker()
    summary = publishing.load_summary(worker)
    if as_json:
        print_json(summary)
    else:
        _show(run_panel(summary))


@bank_app.command("stats")
def bank_stats(run: RunArgument = "latest", as_json: AsJson = False) -> None:
    """Count failures by type, iteration and state."""
    from roleagent.console.show import bank_table, print_json
    from roleagent.loop import runs

    handle = runs.find_run(run)
    stats = handle.worker().bank.stats()
    if as_json:
        print_json(stats)
    else:
        _show(bank_table(handle.run_id, stats))


@bank_app.command("search")
def bank_search(
    text: Annotated[str, typer.Argument(help="What to look for, in words.")],
    run: Annotated[str, typer.Option(help="A run id, or `latest`.")] = "latest",
    count: Annotated[int, typer.Option("--count", "-k", min=1, help="How many.")] = 5,
) -> None:
    """Find the failures most similar to a text."""
    if not text.strip():
        raise ConfigError("the text to look for is empty")
    from roleagent.console.show import neighbours_table
    from roleagent.loop import runs

    handle = runs.find_run(run)
    _show(neighbours_table(handle.run_id, handle.worker().bank.search(text, count)))


@bank_app.command("show")
def bank_show(
    record: Annotated[str, typer.Argument(help="Id of a record, or its beginning.")],
    run: Annotated[str, typer.Option(help="A run id, or `latest`.")] = "latest",
) -> None:
    """Show one diagnosed failure with its episode."""
    from roleagent.console.show import diagnosis_panel
    from roleagent.loop import runs

    _show(diagnosis_panel(runs.find_run(run).worker(), record))


@bank_app.command("rebuild")
def bank_rebuild(run: RunArgument = "latest") -> None:
    """Build the bank's index again from the committed diagnoses."""
    from roleagent.loop import runs

    count = runs.find_run(run).worker().open_bank(fresh=True).count
    typer.echo(f"{count} failures indexed")


@app.command()
def play(
    task_id: Annotated[str, typer.Argument(help="A task id; empty for a held-out one, drawn by the seed.")] = "",
    run: Annotated[str, typer.Option(help="Watch the policy of this run play (`latest` works).")] = "",
    preset: Preset = "quickstart",
    overrides: Overrides = None,
    temperature: Annotated[float, typer.Option(min=0.01, help="Sampling temperature of the policy.")] = 0.4,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the drawn task and of the policy's sampling.")] = 0,
) -> None:
    """Play a task yourself, or watch a policy play one, its predictions beside what happened."""
    from roleagent.config import load_config
    from roleagent.console.play import play_person, watch_policy
    from roleagent.console.screen import make_console
    from roleagent.loop import runs

    if run:
        watch_policy(make_console(), runs.find_run(run).worker(), task_id, temperature=temperature, seed=seed)
    else:
        play_person(make_console(), load_config(preset, overrides or []), task_id, seed)


@app.command()
def doctor() -> None:
    """Check the set-up and say how to mend it. Exit status 1 if something needs mending."""
    from roleagent.console.doctor import examine
    from roleagent.console.screen import make_console

    if not examine(make_console()):
        raise typer.Exit(1)


@config_app.command("show")
def config_show(preset: Preset = "quickstart", overrides: Overrides = None) -> None:
    """Print a preset's full configuration, every default included, as YAML."""
    import yaml

    from roleagent.config import load_config

    typer.echo(yaml.safe_dump(load_config(preset, overrides or []).model_dump(mode="json"), sort_keys=False), nl=False)


@config_app.command("list")
def config_list() -> None:
    """List the presets, and what each is for."""
    from roleagent.config import describe_preset, list_presets

    for name in list_presets():
        typer.echo(f"{name:<14}{describe_preset(name)}")


@data_app.command("fetch")
def data_fetch(
    dataset: Annotated[str, typer.Argument(help="What to fetch: alfworld.")],
    url: Annotated[str, typer.Option(help="Another address of the archive; its publisher's by default.")] = "",
    sha256: Annotated[str, typer.Option(help="Digest that the archive must have.")] = "",
) -> None:
    """Download games with their own project's downloader, check every one, and keep them in the home folder."""
    from roleagent.console.data import fetch_games
    from roleagent.console.screen import make_console

    fetch_games(make_console(), dataset, url, sha256)


@data_app.command("add")
def data_add(
    dataset: Annotated[str, typer.Argument(help="What it is: alfworld.")],
    path: Annotated[Path, typer.Argument(help="An official folder, its ZIP archive, or compact files.")],
    split: Annotated[str, typer.Option(help="Split of a compact file whose name does not tell.")] = "",
) -> None:
    """Take games from a copy, check every one, and keep them in the home folder."""
    from roleagent.console.data import add_games
    from roleagent.console.screen import make_console

    add_games(make_console(), dataset, path, split)


@app.command()
def pretrain(
    output: Annotated[Path, typer.Option(help="Folder of the checkpoint and the finished policy.")] = Path(
        "build/pretrain"
    ),
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps; the recipe's by default.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and corpus.")] = 0,
    recipe: Annotated[str, typer.Option(help="quickstart (household), alfworld, or foresight.")] = "quickstart",
) -> None:
    """Train a small policy on expert play, in both roles. Goes on if interrupted."""
    from roleagent.console.pretrain import run_pretraining
    from roleagent.console.screen import make_console

    run_pretraining(make_console(), output, recipe=recipe, steps=steps, seed=seed)


def _train(config: TrainConfig, run_id: str) -> None:
    from roleagent.console.flows import watched_training
    from roleagent.console.run_panel import finished_panel

    _show(finished_panel(watched_training(config, run_id)))


def _show(screen: RenderableType) -> None:
    from roleagent.console.screen import make_console

    make_console().print(screen, crop=False)
