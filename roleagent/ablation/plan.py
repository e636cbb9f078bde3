"""The plan of an ablation: which runs it makes, and the folder that says how to make them again.

    ablations/<id>/plan.json      what was asked for: preset, overrides, variants, seeds; and every run's configuration
    ablations/<id>/preset.yaml    the preset as it was
    ablations/<id>/sittings.jsonl one line a start of the command: when, the command, the machine, how it was shared
    ablations/<id>/logs/          what each run wrote to its terminal
    ablations/<id>/report/        report.md, results.json, table.csv, measures.csv, figures/

The id names the base configuration: the same command finds its folder again, and so does one with more seeds or other
variants, which then runs only what is missing. Run ids follow from ablation, variant and seed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roleagent.ablation import variants as variants_module
from roleagent.ablation.variants import Variant, parse_variants
from roleagent.config import TrainConfig, load_config, preset_path
from roleagent.config.load import parse_config
from roleagent.errors import ConfigError, StorageError
from roleagent.json_text import read_json_text
from roleagent.loop.home import home, store_uri
from roleagent.storage import RunStore, open_store
from roleagent.storage.manifest import check_run_id

#: What a variant may not change: it would not be the same comparison, or not the same place.
_FIXED = ("seed", "name", "storage", "tracking")
_MAX_RUNS = 1000
#: What the report tells of a sitting, and of its machine.
_SITTING = {"at", "parallel", "threads", "machine"}
_MACHINE = {"processor", "cores", "memory_gb", "gpus", "python", "packages", "commit"}


@dataclass(frozen=True, slots=True)
class Member:
    """One run of an ablation."""

    run_id: str
    variant: str
    seed: int
    config: TrainConfig


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for, as the command line takes it."""

    preset: str = "quickstart"
    variants: tuple[str, ...] = ("full,no-aiw,no-wia,gigpo,grpo",)
    seeds: int = 3
    overrides: tuple[str, ...] = ()
    against: str = ""
    name: str = ""

    def command(self, preset: str = "") -> str:
        """Return the command that asks for this."""
        words = ["roleagent", "ablate", "--preset", preset or self.preset]
        for text in self.variants:
            words += ["--variants", text]
        words += ["--seeds", str(self.seeds)]
        for text in self.overrides:
            words += ["--set", text]
        words += ["--against", self.against] if self.against else []
        words += ["--name", self.name] if self.name else []
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked request: its variants, and its runs in the order in which they are started."""

    ablation_id: str
    request: Request
    base: TrainConfig
    variants: tuple[Variant, ...]
    reference: str  #: name of the variant that the others are compared with
    members: tuple[Member, ...]

    @property
    def folder(self) -> Path:
        """Where the ablation is kept."""
        return home() / "ablations" / self.ablation_id

    @property
    def seeds(self) -> list[int]:
        """The seeds of every variant."""
        return sorted({member.seed for member in self.members})

    def log(self, run_id: str) -> Path:
        """Return the log of a run."""
        return self.folder / "logs" / f"{run_id}.log"


def make_plan(request: Request) -> Plan:
    """Check a request and lay out its runs: seed after seed, so that whole pairs are there early.

    Raises:
        ConfigError: a preset, an override, a variant or a number is wrong.
    """
    if not 1 <= request.seeds <= _MAX_RUNS:
        raise ConfigError(f"--seeds {request.seeds}: must be from 1 to {_MAX_RUNS}")
    base = load_config(request.preset, request.overrides)
    found = parse_variants(request.variants)
    reference = variants_module.reference(found, request.against).name
    ablation_id = request.name or f"{base.name}-ablation-{_digest(base)}"
    configs = {variant.name: _config(request, variant) for variant in found}
    _all_differ(configs)
    members = []
    for seed in range(base.seed, base.seed + request.seeds):
        for variant in found:
            run_id = check_run_id(f"{ablation_id}-{variant.slug}-s{seed}")
            config = configs[variant.name].model_copy(update={"seed": seed})
            members.append(Member(run_id, variant.name, seed, config))
    if len(members) > _MAX_RUNS:
        raise ConfigError(f"{len(found)} variants with {request.seeds} seeds are more than {_MAX_RUNS} runs")
    return Plan(ablation_id, request, base, tuple(found), reference, tuple(members))


def check_plan(plan: Plan) -> None:
    """Find what would stop a run later, and whether what exists already under this name is of this plan.

    Raises:
        ConfigError: one line that names the variant, or the keys in which the ablation of this name differs.
    """
    from roleagent.loop import runs

    _check_base(plan)
    for variant in plan.variants:
        config = next(member.config for member in plan.members if member.variant == variant.name)
        try:
            runs.check(config)
        except ConfigError as error:
            raise ConfigError(f"variant '{variant.name}': {error}") from error
    store = RunStore(open_store(store_uri(plan.base.storage), plan.base.storage.endpoint_url))
    known = set(store.list_runs())
    for member in plan.members:
        if member.run_id in known and _stored(store, member.run_id) != member.config.model_dump(mode="json"):
            raise ConfigError(
                f"run {member.run_id} exists with another configuration; give the variant '{member.variant}' or the "
                "ablation (--name) another name"
            )


def plan_record(plan: Plan) -> dict[str, Any]:
    """Return a plan as `plan.json` has it."""
    return {
        "ablation_id": plan.ablation_id,
        "command": plan.request.command(),
        "command_from_here": plan.request.command("preset.yaml"),
        "preset": plan.request.preset,
        "overrides": list(plan.request.overrides),
        "base": plan.base.model_dump(mode="json"),
        "variants": {variant.name: list(variant.overrides) for variant in plan.variants},
        "reference": plan.reference,
        "seeds": plan.seeds,
        "runs": [
            {
                "run_id": member.run_id,
                "variant": member.variant,
                "seed": member.seed,
                "config": member.config.model_dump(mode="json"),
            }
            for member in plan.members
        ],
    }


def write_plan(plan: Plan, sitting: dict[str, Any]) -> None:
    """Write the folder of an ablation: the plan anew, its preset, and a line for this sitting.

    Raises:
        StorageError: the home folder cannot be written.
    """
    try:
        (plan.folder / "logs").mkdir(parents=True, exist_ok=True)
        _replace(plan.folder / "plan.json", json.dumps(plan_record(plan), indent=1))
        _replace(plan.folder / "preset.yaml", preset_path(plan.request.preset).read_text(encoding="utf-8"))
        with (plan.folder / "sittings.jsonl").open("a+b") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            cut = file.read(1) not in {b"", b"\n"}  # a kill left a line without its end: this one is not to join it
            file.write(b"\n" * cut + json.dumps(sitting).encode() + b"\n")
    except OSError as error:
        raise StorageError(
            f"cannot write {plan.folder}: {error.strerror}; set ROLEAGENT_HOME to a writable folder"
        ) from error


def read_member(folder: Path, run_id: str) -> Member:
    """Return a run of a written plan.

    Raises:
        StorageError: the plan is damaged or has no such run.
    """
    try:
        plan = read_json_text((folder / "plan.json").read_text(encoding="utf-8"))
        found = next(item for item in plan["runs"] if item["run_id"] == run_id)
        return Member(run_id, found["variant"], found["seed"], parse_config(found["config"], source="plan.json"))
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise StorageError(f"{folder / 'plan.json'} has no run {run_id}, or is damaged") from error


def read_sittings(folder: Path) -> list[dict[str, Any]]:
    """Return the sittings of an ablation, oldest first, without lines that a kill cut off or that are none."""
    found = []
    for line in (folder / "sittings.jsonl").read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            sitting = read_json_text(line)
            if sitting.keys() >= _SITTING and sitting["machine"].keys() >= _MACHINE:
                found.append(sitting)
        except (ValueError, AttributeError):
            continue
    return found


@contextmanager
def alone(plan: Plan) -> Iterator[None]:
    """Hold the ablation's lock; the system lets go of it when the process ends, however it ends.

    Raises:
        ConfigError: another process runs this ablation.
        StorageError: the home folder cannot be written.
    """
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
        file = (plan.folder / "lock").open("a")
    except OSError as error:
        raise StorageError(
            f"cannot write {plan.folder}: {error.strerror}; set ROLEAGENT_HOME to a writable folder"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"ablation {plan.ablation_id} is being run by another process; wait or stop it"
            ) from error
        yield


def _config(request: Request, variant: Variant) -> TrainConfig:
    for override in variant.overrides:
        section = override.partition("=")[0].partition(".")[0]
        if section in _FIXED:
            raise ConfigError(f"variant '{variant.name}' may not change {section}: it is the same in all runs")
    try:
        return load_config(request.preset, [*request.overrides, *variant.overrides])
    except ConfigError as error:
        raise ConfigError(f"variant '{variant.name}': {error}") from error


def _all_differ(configs: dict[str, TrainConfig]) -> None:
    seen: dict[str, str] = {}
    for name, config in configs.items():
        text = config.model_dump_json()
        if text in seen:
            raise ConfigError(f"variants '{seen[text]}' and '{name}' are the same configuration; leave one out")
        seen[text] = name


def _check_base(plan: Plan) -> None:
    """Refuse a name that another configuration has: report and MLflow run would mix the two."""
    from roleagent.loop import runs

    path = plan.folder / "plan.json"
    try:
        kept = parse_config(read_json_text(path.read_text(encoding="utf-8"))["base"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, ConfigError):
        return  # there is none, or none that says so: it is written anew
    told = runs.differences(kept, plan.base)
    if told:
        raise ConfigError(
            f"ablation {plan.ablation_id} exists with another base configuration ({told}); give another --name"
        )


def _stored(store: RunStore, run_id: str) -> dict[str, Any]:
    """Return a run's configuration with what this version of the package adds to it."""
    try:
        values = read_json_text(store.config(run_id))
    except ValueError as error:
        raise StorageError(f"the configuration of run {run_id} in {store.store.uri()} is damaged") from error
    return parse_config(values, source=f"run {run_id}").model_dump(mode="json")


def _digest(base: TrainConfig) -> str:
    # Without the defaults, so that a key that a later version adds changes no name.
    return hashlib.sha256(base.model_dump_json(exclude_defaults=True).encode()).hexdigest()[:6]


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
