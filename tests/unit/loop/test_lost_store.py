"""Commands on a run whose store is gone: one line that says what, where, and how to mend it; nothing is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from roleagent import cli
from roleagent.errors import RoleAgentError, StorageError
from roleagent.loop import home as places
from roleagent.loop import runs
from roleagent.loop.worker import drop_workers
from tests.support.committed import MakeRun

COMMANDS = [
    ["runs", "show", "a-run"],
    ["resume", "a-run"],
    ["evaluate", "a-run", "--tasks", "2"],
    ["bank", "stats", "a-run"],
    ["bank", "rebuild", "a-run"],
    ["play", "--run", "a-run"],
]


@pytest.fixture
def store(make_run: MakeRun) -> Path:
    make_run([{}])
    drop_workers()
    return Path(places.home() / "store")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_store_that_is_gone(store: Path, command: list[str]) -> None:
    store.rename(store.with_name("elsewhere"))
    with pytest.raises(StorageError) as caught:
        cli.run(command)
    note = places.run_note("a-run")
    assert str(caught.value) == (
        f"run a-run is kept in {store}, but it is not there: bring the store back to this place, "
        f"or forget the run: rm {note}"
    )
    assert not store.exists()
    store.with_name("elsewhere").rename(store)
    assert runs.find_run("a-run").worker().store.committed("a-run") == [0]


@pytest.mark.parametrize("command", COMMANDS[:3], ids=" ".join)
def test_a_store_without_the_run(store: Path, command: list[str]) -> None:
    (store / "runs").rename(store.with_name("elsewhere"))
    with pytest.raises(StorageError, match=r"but it is not there: bring the store back .*: rm .*a-run\.json$"):
        cli.run(command)


def test_the_list_names_the_lost_run_and_shows_the_others(
    store: Path, make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run([{}], run_id="another")
    drop_workers()
    (store / "runs" / "a-run").rename(store.with_name("elsewhere"))
    assert cli.run(["runs"]) == 0
    shown = capsys.readouterr().out
    assert "a-run: run a-run is kept in" not in shown  # it is named once
    assert f"run a-run is kept in {store}, but it is not there" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("another")]
    assert "0/3" in line


def test_a_bucket_that_is_gone(monkeypatch: pytest.MonkeyPatch, make_run: MakeRun) -> None:
    from botocore.exceptions import ClientError

    from roleagent.storage.s3_store import S3Store

    make_run([{}])
    drop_workers()
    places.run_note("a-run").write_text(
        '{"run_id": "a-run", "store_uri": "s3://kept-here/store", "endpoint_url": "http://127.0.0.1:1"}'
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    opened = S3Store.__init__

    def refusing(self: S3Store, *arguments: object, **options: object) -> None:
        opened(self, *arguments, **options)  # type: ignore[arg-type]

        def refuse(name: str, _arguments: object) -> object:
            raise ClientError({"Error": {"Code": "NoSuchBucket"}}, name)

        self._client._make_api_call = refuse

    monkeypatch.setattr(S3Store, "__init__", refusing)
    with pytest.raises(
        RoleAgentError, match=r"kept in s3://kept-here/store at http://127.0.0.1:1, but it is not there"
    ):
        cli.run(["resume", "a-run"])
