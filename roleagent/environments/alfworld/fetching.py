"""Get the games from where ALFWorld publishes them, with the downloader of the alfworld package.

The package ships its downloader as the program `alfworld-download`, which also fetches what is of no use here (images'
detectors, ALFRED's trajectories). Its own function and its own address of the text games are used, nothing else of it.
"""

from __future__ import annotations

import runpy
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from roleagent.environments.alfworld.adding import Added, Progress, add, digest
from roleagent.environments.alfworld.sources import data_folder
from roleagent.errors import ConfigError, innermost, shortened

PROGRAM = "alfworld-download"
_INSTALL = (
    "install the package with `pip install alfworld`, or download the games yourself and use `roleagent data add`"
)
_REASON = 200  # characters
_MEND = (
    "check the network, or name another address with --url; or download the archive elsewhere and give it to "
    "`roleagent data add alfworld PATH`"
)


class Fetched(NamedTuple):
    """What was fetched."""

    url: str
    sha256: str  #: of the archive
    size: int  #: bytes of the archive
    added: list[Added]


def fetch(
    url: str = "",
    sha256: str = "",
    on_archive: Callable[[str, str, int], None] | None = None,
    on_progress: Progress | None = None,
) -> Fetched:
    """Download the archive of the text games, check its games, and write them into the store of the home folder.

    Args:
        url: another address of the archive; empty for the package's own.
        sha256: what the archive's digest must be; empty for any. It is returned either way.
        on_archive: called with (address, digest, bytes) when the archive is there.
        on_progress: called with (split, games so far).

    Raises:
        ConfigError: the downloader is not installed, the download fails, or the digest is another.
        EnvironmentFault: a game is damaged or no game of ALFWorld.
    """
    downloader = _downloader()
    url = url or downloader["TW_PDDL_FILES_URL"]
    folder = data_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place, _temporary_files_in(place):
        try:
            archive = Path(downloader["download"](url, dst=place))
        except Exception as error:  # requests' own, and whatever else a downloader of another project raises
            raise ConfigError(f"{url} cannot be downloaded: {shortened(innermost(error), _REASON)}; {_MEND}") from error
        found, size = digest(archive), archive.stat().st_size
        if sha256 and sha256.lower() != found:
            raise ConfigError(f"{url} has the SHA-256 {found}, not the one that was asked for; nothing was stored")
        if on_archive is not None:
            on_archive(url, found, size)
        return Fetched(url, found, size, add(archive, on_progress=on_progress))


def _downloader() -> dict[str, Any]:
    program = Path(sysconfig.get_path("scripts")) / PROGRAM
    if not program.is_file():
        raise ConfigError(f"the downloader {PROGRAM} is not there: {_INSTALL}")
    try:
        names = runpy.run_path(str(program), run_name="alfworld_download")
    except ImportError as error:
        raise ConfigError(f"the downloader {PROGRAM} cannot be used ({error}): {_INSTALL}") from error
    if not {"download", "TW_PDDL_FILES_URL"} <= names.keys():
        raise ConfigError(f"the downloader {PROGRAM} is of an unknown version: {_INSTALL}")
    return names


@contextmanager
def _temporary_files_in(folder: str) -> Iterator[None]:
    """Keep the downloader's unfinished files in a folder of their own: it would go on with those of another address."""
    before = tempfile.tempdir
    tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = before
