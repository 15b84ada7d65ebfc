"""The directory of a run: its files, its making, and its removal after a start at which nothing happened."""

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from fedgsp.errors import ConfigError, DataError, not_written, remedy_of
from fedgsp.files import MOST_OF_SETTINGS, in_place, open_file, put, read_file
from fedgsp.locks import try_lock
from fedgsp.owners import check_owner, keep_from_others
from fedgsp.processes.children import TAIL_LINES
from fedgsp.settings.files import dump
from fedgsp.settings.run import RunConfig
from top_server.record.audit import NO_AUDIT, Audit
from top_server.record.history import lines_of

logger = logging.getLogger(__name__)

DEFAULT_PARENT = Path("runs")
#: Error numbers of a full disk.
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: Access rights of users other than the owner.
_OTHERS = 0o077
#: Bytes of a log that are looked at.
_MOST_OF_LOG = 1 << 20
#: Events of a start at which no node was given work.
_BEFORE_WORK = (
    *("listening", "waiting_for_nodes", "node_enrolled", "node_joined", "node_refused", "node_left"),
    *("settings_chosen", "groups_expected", "groups_doubted", "worker_ended", "run_failed", "run_stopped"),
    *("nodes_refused", "node_revoked"),
)


class RunDirectory:
    """Paths of the files in the directory of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The settings: `top-server --config` of it repeats the run.
        self.config = path / "config.toml"
        #: One JSON object per round.
        self.history = path / "history.jsonl"
        #: One JSON object per event.
        self.events = path / "events.jsonl"
        #: Who did what, in lines that are chained by hashes; `top-server audit` verifies it.
        self.audit = path / "audit.jsonl"
        #: Score and metrics of each client at the end of the run, if its history has them.
        self.summary = path / "summary.json"
        #: Distances between the clients' data, in runs that measure them.
        self.distances = path / "distances.json"
        #: The checkpoints.
        self.models = path / "models"
        #: What --resume and --extend need; and what local nodes keep.
        self.state = path / "state"
        #: Log files of the processes that the run started.
        self.logs = path / "logs"


@contextlib.contextmanager
def usable(directory: RunDirectory, flag: str = "--run-dir") -> Iterator[None]:
    """Turns an OSError into the error for a directory that cannot be used; a full disk is not an error of the flag."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise not_written(f"{flag} {directory.path}", error) from None
        if error.errno in (errno.ELOOP, errno.EMLINK):
            what = f"{error.filename} cannot be written: {error.strerror}"
            raise ConfigError(what, remedy_of(error)) from None
        raise ConfigError(
            f"{flag} {directory.path} cannot be used: {error.strerror or error}",
            "give a directory that you may write to",
        ) from None


def prepare(config: RunConfig, now: datetime | None = None) -> RunDirectory:
    """Make the directory of a run, with its settings in it; ConfigError if that fails or the directory holds a run.

    A run that ended before its first round does not count: the new run replaces it.
    """
    directory = RunDirectory(config.run_dir or _unused(now or datetime.now(UTC), config.scheme))
    check_owner("--run-dir", config.run_dir or DEFAULT_PARENT)
    again = never_began(directory)
    if not again:
        check_free(directory)
    claim(directory)
    with usable(directory):
        try:
            if again:
                with open(directory.events, "r+b", opener=in_place) as file:
                    lock(file, directory)  # refused if that run's top server still waits for nodes
                    file.truncate()
                    directory.audit.unlink(missing_ok=True)
            directory.models.mkdir(exist_ok=again)
            if again:
                put(directory.config, _text(config).encode())
            else:
                with directory.config.open("xb") as file:
                    file.write(_text(config).encode())
        except OSError as error:
            if error.errno in _FULL and not again:  # or the next run, on a disk with room, would take this for one
                with contextlib.suppress(OSError):
                    directory.config.unlink(missing_ok=True)
                    directory.models.rmdir()
            raise
    return directory


def _text(config: RunConfig) -> str:
    """Settings as config.toml has them, without run_dir: they repeat the run, and a directory holds one run only."""
    return f"# Repeat this run: top-server --config FILE\n{dump(dataclasses.replace(config, run_dir=None))}"


def digest_of_config(directory: RunDirectory) -> str:
    """The SHA-256 of config.toml, for the audit log; raises OSError."""
    return hashlib.sha256(read_file(directory.config, MOST_OF_SETTINGS)).hexdigest()


def write_config(directory: RunDirectory, config: RunConfig, audit: Audit = NO_AUDIT) -> None:
    """Replace the settings of a run, all at once; raises RunError if that fails.

    The audit log gets the line first: a process that dies in between leaves one of the two files that the log knows.
    """
    audit.note("settled", settings=hashlib.sha256(_text(config).encode()).hexdigest())
    try:
        put(directory.config, _text(config).encode())
    except OSError as error:
        raise not_written(directory.config, error) from error


def make_state(directory: RunDirectory) -> None:
    """Make the folder of the state, readable by its owner only; raises OSError.

    It holds data of single clients: updates, histograms and models. The programs have a umask that keeps all other
    files from others too.
    """
    folder = directory.state
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = folder.stat().st_mode
    if mode & _OTHERS:
        try:
            folder.chmod(mode & ~_OTHERS)
        except OSError as error:  # another user owns it, or the file system has no access rights
            logger.warning("%s can be read by others on this machine: %s", folder, error.strerror)


def close_to_others(directory: RunDirectory, flag: str) -> None:
    """Take from other users all access to the files of a run, which an earlier version, or a person, may have given.

    The directory itself keeps its rights: it may hold other files. ConfigError that names `flag` if that fails.
    """
    with usable(directory, flag):
        keep_from_others([path for path in vars(directory).values() if path != directory.path])


def check_links(directory: RunDirectory, flag: str) -> None:
    """Raise ConfigError if a file or folder of the run is a link, by which this process would write elsewhere.

    The directory itself can be a link, which the caller has chosen; what is in it may have come from somebody else.
    """
    own = [path for path in vars(directory).values() if path != directory.path]
    below = (Path(at, name) for path in own for at, *names in os.walk(path) for name in itertools.chain(*names))
    for path in itertools.chain(own, below):
        if path.is_symlink():
            raise ConfigError(
                f"{flag} {directory.path} has a link in it, by which files elsewhere would be written: {path}",
                "remove the link, or put a copy of what it leads to in its place",
            )


def lock(file: IO[bytes], directory: RunDirectory) -> None:
    """Lock a file of the record until this process closes it or ends; ConfigError if another process has the lock."""
    if not try_lock(file):
        raise ConfigError(f"another top server records in {directory.path}", "wait for its end, or stop it")


def never_began(directory: RunDirectory) -> bool:
    """Whether a run ended here before its first round, for example while it waited for nodes."""
    try:
        if directory.history.stat().st_size or any(directory.models.iterdir()):
            return False  # its events may be many, and are not needed
        begun = any(event.get("event") == "round_started" for event in lines_of(directory.events))
    except (OSError, DataError):
        return False
    begun = begun or any(directory.state.glob("round-*"))
    return directory.config.is_file() and not begun


def is_worth_keeping(directory: RunDirectory) -> bool:
    """Whether a person could need the directory: nodes were given work, or a log says more than an error message.

    An error message quotes the last `children.TAIL_LINES` lines of a log; longer logs are kept.
    """
    return (
        not never_began(directory)
        or any(event.get("event") not in _BEFORE_WORK for event in lines_of(directory.events))
        or any(_lines_more(log) for log in directory.logs.glob("*.log"))
    )


def _lines_more(log: Path) -> bool:
    """Whether a log has more lines than an error message quotes. An old directory may have anything of such a name."""
    try:
        with open_file(log) as file:
            begin = file.read(_MOST_OF_LOG)
    except OSError:
        return False
    return len(begin) == _MOST_OF_LOG or len(begin.splitlines()) > TAIL_LINES


def remove(directory: RunDirectory, folder_too: bool) -> None:
    """Remove the files of a run, and the directory itself with `folder_too`, unless it has other files.

    What cannot be removed stays.
    """
    for folder in (directory.models, directory.logs, directory.state):
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        for file in (directory.config, directory.history, directory.events, directory.audit):
            file.unlink(missing_ok=True)
        if folder_too:
            directory.path.rmdir()
            if directory.path.parent == DEFAULT_PARENT:
                DEFAULT_PARENT.rmdir()


def check_free(directory: RunDirectory, flag: str = "--run-dir") -> None:
    """Raise ConfigError if the directory holds a run, or cannot be made because of a file at its place."""
    with usable(directory, flag):
        if directory.path.exists() and not directory.path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        for part in (directory.config, directory.history, directory.events, directory.audit, directory.models):
            if part.exists():
                raise ConfigError(
                    f"{flag} {directory.path} already holds a run ({part.name})",
                    "give another directory, or move that one away",
                )


def claim(directory: RunDirectory, flag: str = "--run-dir") -> None:
    """Make the directory and try to write into it; ConfigError if one of them fails, or if it has links in it."""
    check_links(directory, flag)
    with usable(directory, flag):
        directory.path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory.path).close()


def _unused(now: datetime, scheme: str) -> Path:
    name = f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{scheme}"
    candidates = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in map(DEFAULT_PARENT.joinpath, candidates) if not path.exists())
