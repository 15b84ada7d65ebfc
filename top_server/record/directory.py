"""The directory that a run leaves behind."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import itertools
import logging
import os
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from fedgsp.errors import ConfigError, DataError, UserError, not_written
from fedgsp.settings.files import dump
from fedgsp.settings.run import RunConfig
from top_server.record.history import read_lines

logger = logging.getLogger(__name__)

DEFAULT_PARENT = Path("runs")
#: What a disk says that takes no more.
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: What the mode of a folder lets others than its owner do.
_OTHERS = 0o077


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Where each part of the record of a run lies."""

    path: Path

    @property
    def config(self) -> Path:
        """The settings: `top-server --config` of it repeats the run."""
        return self.path / "config.toml"

    @property
    def history(self) -> Path:
        """One JSON object per round."""
        return self.path / "history.jsonl"

    @property
    def events(self) -> Path:
        """One JSON object per event."""
        return self.path / "events.jsonl"

    @property
    def summary(self) -> Path:
        """How well each client is served, at the end of a run of schemes in which all train in every round."""
        return self.path / "summary.json"

    @property
    def distances(self) -> Path:
        """How far the clients' data were found to be apart, in runs that measure it."""
        return self.path / "distances.json"

    @property
    def models(self) -> Path:
        """The checkpoints."""
        return self.path / "models"

    @property
    def state(self) -> Path:
        """What --resume goes on from, while the run is not finished; and what local nodes keep."""
        return self.path / "state"

    @property
    def logs(self) -> Path:
        """What processes started by the run wrote."""
        return self.path / "logs"


def prepare(config: RunConfig, now: datetime | None = None) -> RunDirectory:
    """Make the directory of a run, with its settings in it; ConfigError if it cannot be or a run is there already.

    One that ended before its first round has left nothing that anybody needs: this one takes its place.
    """
    path = config.run_dir or _unused(now or datetime.now(UTC), config.scheme)
    directory = RunDirectory(path)
    again = _never_began(directory)
    if not again:
        check_free(directory)
    claim(directory)
    try:
        if again:
            _clear(directory)
        directory.models.mkdir(exist_ok=again)
        with directory.config.open("w" if again else "x", encoding="utf-8") as file:
            file.write(_settings_text(config))
    except OSError as error:
        if error.errno in _FULL and not again:  # or the next run, on a disk with room, would take this for one
            with contextlib.suppress(OSError):
                directory.config.unlink(missing_ok=True)
                directory.models.rmdir()
        raise unusable(directory, "--run-dir", error) from None
    return directory


def make_state(directory: RunDirectory) -> None:
    """Make the folder of the state, or take an earlier one's rights away from others; raises OSError.

    There is what single clients showed: their updates, histograms and models. The rest of the record is the umask's.
    """
    folder = directory.state
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = folder.stat().st_mode
    if mode & _OTHERS:
        try:
            folder.chmod(mode & ~_OTHERS)
        except OSError as error:  # of another user, or on a disk that keeps no rights
            logger.warning("%s can be read by others on this machine: %s", folder, error.strerror)


def lock(file: IO[bytes], directory: RunDirectory) -> None:
    """Take a file of the record until it is closed, however this process ends; ConfigError if another has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        what = f"another top server records in {directory.path}"
        raise ConfigError(what, "wait for its end, or stop it") from None


def _never_began(directory: RunDirectory) -> bool:
    """Whether a run was to be here and ended before its first round: waiting for nodes, say."""
    try:
        events = read_lines(directory.events)
        empty = directory.history.stat().st_size == 0 and not any(directory.models.iterdir())
    except (OSError, DataError):
        return False
    begun = any(event.get("event") == "round_started" for event in events) or any(directory.state.glob("round-*"))
    return directory.config.is_file() and empty and not begun


def _clear(directory: RunDirectory) -> None:
    """Empties a record whose run never began; ConfigError if another top server waits for nodes there."""
    with directory.events.open("r+b") as file:
        lock(file, directory)
        file.truncate()


def check_free(directory: RunDirectory, flag: str = "--run-dir") -> None:
    """Raise ConfigError if a run is there already, or no directory can be."""
    try:
        if directory.path.exists() and not directory.path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        for part in (directory.config, directory.history, directory.events, directory.models):
            if part.exists():
                raise ConfigError(
                    f"{flag} {directory.path} already holds a run ({part.name})",
                    "give another directory, or move that one away",
                )
    except OSError as error:
        raise unusable(directory, flag, error) from None


def claim(directory: RunDirectory, flag: str = "--run-dir") -> None:
    """Make the directory; ConfigError if it cannot be."""
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory.path):
            pass
    except OSError as error:
        raise unusable(directory, flag, error) from None


def unusable(directory: RunDirectory, flag: str, error: OSError) -> UserError:
    """Why a directory cannot be used: a full disk is no mistake of the flag."""
    if error.errno in _FULL:
        return not_written(f"{flag} {directory.path}", error)
    reason = error.strerror or str(error)
    return ConfigError(f"{flag} {directory.path} cannot be used: {reason}", "give a directory that you may write to")


def _settings_text(config: RunConfig) -> str:
    # Without run_dir: these settings are there to repeat the run, and a directory takes no second one.
    return f"# Repeat this run: top-server --config FILE\n{dump(dataclasses.replace(config, run_dir=None))}"


def _unused(now: datetime, scheme: str) -> Path:
    name = f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{scheme}"
    candidates = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in (DEFAULT_PARENT / candidate for candidate in candidates) if not path.exists())
