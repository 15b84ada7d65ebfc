"""Files and folders that only the user of this process can change, and secrets that nobody else can read."""

import contextlib
import grp
import logging
import os
import pwd
import stat
from pathlib import Path

from fedgsp.errors import ConfigError

logger = logging.getLogger(__name__)

ROOT = 0
#: An environment variable. With the value 1, no other user reaches the folders of this process, as in a container.
#: Folders that others could change are then not refused, whoever owns them: a volume may give all files one owner.
SOLE_USER = "FEDGSP_SOLE_USER"


def check_secret(flag: str, path: Path, status: os.stat_result) -> None:
    """Raises ConfigError unless a secret belongs to this user or root, and nobody else can read or change it.

    `status` is that of the file which was read; `path` may be a symbolic link to it, which must be ours too.
    """
    if path.is_symlink():
        _check_is_ours(flag, path, path.lstat())
    _check_is_ours(flag, path, status)
    if status.st_mode & 0o077:
        who = "every user of this machine" if status.st_mode & 0o007 else f"group {_group(status.st_gid)}"
        raise ConfigError(
            f"{flag} {path} can be used by {who} (mode {stat.S_IMODE(status.st_mode):04o})", f"run: chmod 600 {path}"
        )


def check_owner(flag: str, path: Path) -> None:
    """Raises ConfigError if a file or directory that exists belongs to another user."""
    if os.path.exists(path):  # also False for a path that cannot exist
        _check_owner(flag, path, path.stat(), roots_too=False)


def check_directory(flag: str, path: Path) -> None:
    """Raises ConfigError if an existing directory belongs to another user, or if others can put files into it."""
    check_owner(flag, path)
    if path.is_dir():
        _check_unchanged(flag, path, path.stat(), shared=False)


def check_file(flag: str, path: Path) -> None:
    """Raises ConfigError if others than this user and root can change a file, or put another one in its place."""
    if path.is_file():
        _check_way(flag, path)
        _check_file(flag, path.resolve())


def check_tree(flag: str, path: Path) -> None:
    """Raises ConfigError unless only this user, and root, could have made or changed what is in a directory.

    That also holds for the folders above it, in which somebody could put another directory in its place, and for
    what symbolic links in it lead to. A directory that does not exist passes.
    """
    try:
        if os.path.exists(path):
            _check_tree(flag, path)
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be read: {error.strerror}", "give a directory of your own") from None


def _check_tree(flag: str, path: Path) -> None:
    _check_way(flag, path)
    check_directory(flag, path)
    for folder, folders, files in os.walk(path, onerror=_raise):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):  # another process has put its file in place meanwhile
                _check_file(flag, Path(folder, name))


def _check_file(flag: str, path: Path) -> None:
    status = path.lstat()
    _check_owner(flag, path, status)
    if not stat.S_ISLNK(status.st_mode):
        _check_unchanged(flag, path, status)
    elif path.exists():
        _check_way(flag, path)
        _check_owner(flag, path, path.stat())


def _check_way(flag: str, path: Path) -> None:
    """Checks all folders and symbolic links by which `path` is found: who changes one can lead elsewhere."""
    here = Path(path.absolute().anchor)  # never a link, so that `..` leads to its parent
    for part in path.absolute().parts[1:]:
        _check_owner(flag, here, here.stat())
        _check_unchanged(flag, here, here.stat())
        here = here.parent if part == ".." else here / part
        if here.is_symlink():
            _check_owner(flag, here, here.lstat())
            _check_way(flag, here.parent / here.readlink())
            here = here.resolve()


def tell_if_open(flag: str, path: Path, next_time: str) -> None:
    """Warns of a directory that this program has just made, if it would be refused `next_time`."""
    try:
        check_tree(flag, path)
    except ConfigError as error:
        logger.warning("%s; %s", error, next_time)


def keep_from_others(paths: list[Path]) -> None:
    """Takes from other users all access to these files and folders, as far as they exist; raises OSError."""
    for path in paths:
        if path.exists() and not path.is_symlink():
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o077)


def _raise(error: OSError) -> None:
    raise error


def _check_owner(flag: str, path: Path, status: os.stat_result, roots_too: bool = True) -> None:
    if not _is_sole_user():
        _check_is_ours(flag, path, status, roots_too)


def _check_is_ours(flag: str, path: Path, status: os.stat_result, roots_too: bool = True) -> None:
    """`roots_too`: what belongs to root passes too."""
    if status.st_uid != os.geteuid() and not (roots_too and status.st_uid == ROOT):
        whose = _user(status.st_uid)
        raise ConfigError(
            f"{flag} {path} belongs to user {whose}, not to {_user(os.geteuid())}",
            f"start this program as {whose}, or make a copy of your own if you trust that user",
        )


def _check_unchanged(flag: str, path: Path, status: os.stat_result, shared: bool = True) -> None:
    """`shared`: it may be a folder for temporary files, where others can add files and replace none of this user."""
    if _is_sole_user():
        return
    others = status.st_mode & stat.S_IWOTH
    group = status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid)
    if (others or group) and not (shared and stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        who = "every user of this machine" if others else f"group {_group(status.st_gid)}"
        raise ConfigError(f"{flag} {path} can be changed by {who}", f"run: chmod go-w {path}")


def _is_sole_user() -> bool:
    return os.environ.get(SOLE_USER) == "1"


def _is_own_group(gid: int) -> bool:
    """Whether a group is the user's private one, as many systems make it, with a umask that lets it write."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _user(uid: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def _group(gid: int) -> str:
    with contextlib.suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return str(gid)
