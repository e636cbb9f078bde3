"""`python -m infra.embedded up | down | status`: the stack of `make up`."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.embedded.processes import StackError
from infra.embedded.stack import Ports, Stack
from roleagent.loop.servers import bypass_proxies

app = typer.Typer(no_args_is_help=True, add_completion=False, help="S3, Prefect and MLflow on this machine.")
_console = Console()
_DEFAULT = Ports()


@app.command()
def up(
    prefect_port: Annotated[int, typer.Option(min=1, max=65535, help="Prefect server and UI.")] = _DEFAULT.prefect,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="MLflow server and UI.")] = _DEFAULT.mlflow,
    s3_port: Annotated[int, typer.Option(min=1, max=65535, help="S3 server.")] = _DEFAULT.s3,
    detach: Annotated[bool, typer.Option(help="Return once everything answers; `down` ends it.")] = False,
    deploy: Annotated[bool, typer.Option(help="Deploy the flows of prefect.yaml.")] = True,
) -> None:
    """Start the stack; Ctrl-C ends it."""
    stack = Stack()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _console.status("starting") as status:
            stack.up(Ports(prefect_port, mlflow_port, s3_port), deploy=deploy, tell=status.update)
        _show(stack)
        if detach:
            return
        _console.print("Ctrl-C ends the stack.", style="dim")
        ended = stack.watch()
    except StackError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _stop(stack)
        return
    if ended:
        _stop(stack)
        log = stack.folder / f"{ended}.log"
        _fail(f"{ended} has ended (see {log}); the others were stopped. Start them again with `make up`")


@app.command()
def down() -> None:
    """End the stack; data stay."""
    _stop(Stack())


@app.command()
def status() -> None:
    """Show the services; exit status 1 when not all of them run."""
    stack = Stack()
    _show(stack)
    if not all(service.running for service in stack.status()):
        raise typer.Exit(1)


def _show(stack: Stack) -> None:
    table = Table("service", "address", "process", "memory", box=None, header_style="dim", padding=(0, 3, 0, 0))
    for service in stack.status():
        state = f"{service.pid}" if service.running else "[red]not running[/red]"
        memory = f"{service.memory_mb:,.0f} MB" if service.running else ""
        table.add_row(f"[bold]{service.name}[/bold]", service.address, state, memory)
    _console.print(table)
    hint = f"Logs: {stack.folder}    Use it: source {stack.folder / 'env'}"
    _console.print(Text(hint, style="dim"), soft_wrap=True)


def _stop(stack: Stack) -> None:
    with _console.status("stopping") as status:
        ended = stack.down(status.update)
    _console.print(f"Stopped {', '.join(ended)}." if ended else "Nothing was running.")


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(Text.assemble(("error:", "red"), f" {message}"), soft_wrap=True, highlight=False)
    sys.exit(2)


def main() -> None:
    """Run the command line; an error that a person can mend is one line and exit status 2."""
    bypass_proxies()
    try:
        app()
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        _fail(f"{(error.strerror or str(error)).lower()}{where}")


if __name__ == "__main__":
    main()
