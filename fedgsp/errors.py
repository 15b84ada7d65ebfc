"""Errors that a person can correct, and the exit codes of processes that end with them.

UserError
  ConfigError     a flag or a settings file                 exit 2
  TaskError       a task module: missing, raising, wrong    exit 3
  DataError       a data file: missing, cut, other format   exit 4
  PeerError       another process: absent, refusing         exit 5
  RunError        the run cannot continue                   exit 6

An expected failure between processes is not an exception but a value: `fedgsp.messages.Failure`.
"""

import errno
import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from fedgsp.visible import visible_lines

#: One row of a list of what must not be: whether it is so, what is wrong about it, and what to do.
Refusal: TypeAlias = tuple[object, str, str]


class UserError(Exception):
    """An error that a person can correct: it says what is wrong, and what to do."""

    exit_code = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        # In Python a traceback shows this text, which may quote a record or a peer.
        super().__init__(visible_lines(f"{what}; {remedy}" if remedy else what))
        self.what = what
        self.remedy = remedy

    @classmethod
    def require(cls, fits: object, what: str, remedy: str = "") -> None:
        """Raises this kind of error unless the condition `fits` is true."""
        if not fits:
            raise cls(what, remedy)

    @classmethod
    def refuse(cls, refusals: Iterable[Refusal]) -> None:
        """Raises this kind of error for the first row of a list whose condition is true."""
        for wrong, what, remedy in refusals:
            cls.require(not wrong, what, remedy)


class ConfigError(UserError):
    """A flag, an option or a settings file cannot be used."""

    exit_code = 2


class TaskError(UserError):
    """A task cannot be imported, built or run."""

    exit_code = 3


class DataError(UserError):
    """A data file is missing, truncated or of another format."""

    exit_code = 4


class PeerError(UserError):
    """Another process is absent, refuses, or sends an answer that cannot be used."""

    exit_code = 5


class RunError(UserError):
    """The run cannot continue."""

    exit_code = 6


def reason_of(error: Exception) -> str:
    """Why a file cannot be read, without the words of Python about it; the message around it names the file."""
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8"
    return getattr(error, "strerror", None) or str(error)


#: Number of an error of the operating system -> what to do if a file cannot be written.
_REMEDIES: Mapping[int, str] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room on that disk"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the number of files that a process may open: ulimit -n"),
    errno.EFBIG: "raise the size that a file may have (ulimit -f), or choose a disk that takes larger files",
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "let this user write there, or choose another place"),
    errno.ELOOP: "it is a link, which is not followed here: remove it, or choose another path",
    errno.EMLINK: "put a copy of it in its place, or choose another path",
    errno.ENOENT: "make the folder that it belongs in",
    errno.ENOTDIR: "a part of this path is a file and no folder: choose another path",
    errno.EISDIR: "there is a folder of that name: choose another name",
    errno.EEXIST: "there is a file of that name: choose another name",
    errno.ENAMETOOLONG: "choose a shorter name",
}
#: How safetensors, which is written in Rust, names an error of the operating system.
_OF_RUST = re.compile(r"\(os error ([0-9]+)\)")


def remedy_of(error: Exception) -> str:
    """What to do if a file cannot be written."""
    return _REMEDIES.get(_number(error), "check that path, and the disk")


def is_full(error: BaseException | None) -> bool:
    """Whether a file could not be written because its disk is full, or what its user may have there."""
    return _number(error) in (errno.ENOSPC, errno.EDQUOT)


def _number(error: BaseException | None) -> int:
    """The number that the operating system gives an error; 0 if it gives none."""
    number = getattr(error, "errno", None)
    if number is None and (found := _OF_RUST.search(str(error))):
        number = int(found[1])
    return number or 0


def not_written(path: object, error: Exception) -> RunError:
    """The error of a run that cannot write a file or a folder."""
    return RunError(f"{path} cannot be written: {reason_of(error)}", remedy_of(error))


#: As `_REMEDIES`, for a process that cannot be started.
_REMEDIES_OF_STARTS: Mapping[int, str] = {
    errno.EAGAIN: "raise the number of processes that this user (ulimit -u) or container may have",
    errno.ENOMEM: "free memory, or start fewer processes on this machine",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS), _REMEDIES[errno.EMFILE]),
}


def not_started(what: str, error: OSError, remedy: str = "see what this machine lacks") -> PeerError:
    """The error of a process that cannot be started. `remedy` is told where the reason has none of its own."""
    return PeerError(f"{what} cannot be started: {reason_of(error)}", _REMEDIES_OF_STARTS.get(_number(error), remedy))


def valid(fits: object, what: str, error: type[Exception] = ValueError) -> None:
    """Raises `error`, which has a text alone, unless the condition `fits` is true."""
    if not fits:
        raise error(what)
