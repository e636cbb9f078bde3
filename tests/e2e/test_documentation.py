"""Every command of the documentation runs, or is checked as far as it can be here.

Commands are taken from the `bash` blocks of README, CONTRIBUTING and docs/, and from inline code that is a whole
`roleagent` command. They run one after another in a copy of the trained home folder, as a reader would type them. What
is put in the place of what would take too long, or needs what is not there:

- `roleagent train`: the preset `quickstart` becomes `smoke`, with one iteration of short episodes.
- `roleagent ablate`: with `--dry-run`: everything but the training (which `test_ablation.py` does).
- `roleagent pretrain`: with `--steps 2`, where it has no `--steps`.
- `roleagent evaluate --tasks N`: N is at most 8, the held-out tasks of that preset's evaluations.
- `<name>`-like placeholders: the command is read, not run: its options must exist.
- `make TARGET`: the target must be in the Makefile, and `make --dry-run` must accept it.
- `source FILE`, and programs of other packages: what they name must be there.

Settings in running text (`--set key=value`) must load.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from roleagent.config import load_config
from tests.support.commands import BIN, ROOT, Trained, command, copy_home

pytestmark = pytest.mark.timeout(900)

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:roleagent|make) [^`]+)`")
_SETTING = re.compile(r"--set ([a-z_.]+=[^\s`)]+)")
SHORT = ("iterations=1", "environment.max_steps=4", "evaluation.tasks=2", "evaluation.final_tasks=2")
_PLACEHOLDER = re.compile(r"<[a-z_ ]+>|\b(?:RUN|TEXT|RECORD|NAME|TARGET|COMMAND)\b|\[[A-Z]+\]")


def blocks() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
            lines = block.replace("\\\n", " ").splitlines()
            found += [(page.name, line) for line in lines if line.split("#")[0].strip()]
    return found


def inline() -> list[tuple[str, str]]:
    return [(page.name, text) for page in PAGES for text in _INLINE.findall(page.read_text(encoding="utf-8"))]


def settings() -> list[tuple[str, str]]:
    found = [(page.name, text) for page in PAGES for text in _SETTING.findall(page.read_text(encoding="utf-8"))]
    return list(
        dict.fromkeys(item for item in found if not _PLACEHOLDER.search(item[1]) and item[1] != "section.key=value")
    )


def quick(words: list[str]) -> list[str]:
    """Return a command as it is run here; see the module's text."""
    words = [BIN.joinpath("roleagent").as_posix(), *words[1:]]
    if words[1] == "train":
        words = ["smoke" if word == "quickstart" else word for word in words]
        words += [word for setting in SHORT for word in ("--set", setting)]
        if "--preset" not in words:
            words += ["--preset", "smoke"]
    if words[1] == "ablate":
        words += ["--dry-run"]
    if words[1] == "pretrain" and "--steps" not in words:
        words += ["--steps", "2"]
    if words[1] == "evaluate" and "--tasks" in words:
        place = words.index("--tasks") + 1
        words[place] = str(min(8, int(words[place])))
    return words


@pytest.fixture(scope="module")
def home(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_home(trained.home, tmp_path_factory.mktemp("documentation") / "home")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder of the commands, into which they may write."""
    return tmp_path_factory.mktemp("desk")


def test_commands_are_found() -> None:
    assert len(blocks()) > 12
    assert len(inline()) > 3
    assert len(settings()) > 3


@pytest.mark.parametrize(("page", "line"), blocks(), ids=lambda value: str(value)[:60])
def test_a_command_of_a_code_block(page: str, line: str, home: Path, desk: Path) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "roleagent":
        target = Path()
        if ">" in words:
            target, words = desk / words[words.index(">") + 1], words[: words.index(">")]
        done = command(quick(words), home, cwd=desk)
        assert done.returncode == 0, done.stderr
        if target != Path():
            target.write_text(done.stdout, encoding="utf-8")
    elif words[0] == "make":
        check_target(words[1])
    elif words[0] == "source":
        assert words[1].startswith((".venv/bin/", ".roleagent/stack/")), words
    elif "pytest" in words:
        for word in words:
            assert not word.startswith("tests/") or (ROOT / word.split("::")[0]).exists(), word
    else:
        program = words[0].removeprefix(".venv/bin/")
        assert (BIN / program).exists() or shutil.which(program), f"{page}: {program} is not installed"


@pytest.mark.parametrize(("page", "line"), inline(), ids=lambda value: str(value)[:60])
def test_a_command_of_running_text(page: str, line: str, home: Path, desk: Path) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        check_target(words[1])
        return
    names = [word for word in words[1:3] if re.fullmatch(r"[a-z]+", word)]
    done = command([str(BIN / "roleagent"), *names, "--help"], home)
    if done.returncode == 2 and len(names) == 2:  # the second word was an argument
        done = command([str(BIN / "roleagent"), names[0], "--help"], home)
    assert done.returncode == 0, done.stderr
    for option in re.findall(r"--[a-z-]+", line):
        assert option in done.stdout, f"{page}: {option}"


def check_target(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    done = command(["make", "--dry-run", target], ROOT / ".roleagent")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("page", "setting"), settings(), ids=str)
def test_a_setting_of_running_text(page: str, setting: str) -> None:
    related = {"rollout.max_turn_tokens"}
    load_config("quickstart" if setting.split("=")[0] not in related else "smoke", [setting])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for name in re.findall(r"`((?:tests|roleagent|flows|tasks|infra|docs)/[A-Za-z0-9_./-]+)`", text):
        assert (ROOT / name).exists(), f"{page.name} names {name}"
