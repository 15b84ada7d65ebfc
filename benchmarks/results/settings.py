"""The settings of a run as a summary has them: without addresses and places of files, which differ by machine."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fedgsp.errors import ConfigError
from fedgsp.settings.connections import CONNECTIONS
from fedgsp.settings.fields import described
from fedgsp.settings.run import RunConfig
from top_server.compared import FILES

#: Settings of this machine.
_LEFT_OUT = ("listen", "manager_ports", "run_dir", "local_run")
_SERVICE = "grpc://"


def kept(config: RunConfig, base: Path) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Settings without what is of one machine, and the files among the options, each with its size and SHA-256.

    The files are named by setting and option, such as `task_option.data`. Relative paths begin at `base`. Raises
    ConfigError if a file is gone.
    """
    settings: dict[str, Any] = {}
    files: dict[str, list[dict[str, Any]]] = {}
    for name, one in described(RunConfig).items():
        value = getattr(config, name)
        if name in _LEFT_OUT or one.metadata["panel"] == CONNECTIONS or value in (None, {}, ()):
            continue
        if isinstance(value, dict):
            found = {key: text for key, text in value.items() if key in FILES or text.startswith("/")}
            files |= {f"{name}.{key}": _files(f"{name}.{key}", text, base) for key, text in found.items()}
            value = {key: text for key, text in value.items() if key not in found}
        elif isinstance(value, str) and value.startswith(_SERVICE):
            value = _SERVICE
        if value != {}:
            settings[name] = list(value) if isinstance(value, tuple) else value
    return settings, files


def with_files(
    settings: dict[str, Any], files: dict[str, list[dict[str, Any]]], given: dict[str, str]
) -> dict[str, Any]:
    """The settings with the places of their files; `given` has a place for each, by setting and option.

    Raises ConfigError if a place is missing, or has other files than the run had.
    """
    played = {name: dict(value) if isinstance(value, dict) else value for name, value in settings.items()}
    for option, wanted in files.items():
        setting, _, key = option.partition(".")
        names = ", ".join(file["name"] for file in wanted)
        flag = f"--{setting.replace('_', '-')} {key}=FILE"
        if option not in given:
            raise ConfigError(f"the run read {names}", f"say where it is: {flag}")
        found = _files(option, given[option], Path.cwd())
        if [file["sha256"] for file in found] != [file["sha256"] for file in wanted]:
            raise ConfigError(f"{given[option]} is not what the run read: {names}", f"give the same data: {flag}")
        played.setdefault(setting, {})[key] = given[option]
    if unknown := [option for option in given if option not in files]:
        raise ConfigError(f"the run read no file as {unknown[0]}", "leave the option out: it would change the run")
    return played


def _files(option: str, paths: str, base: Path) -> list[dict[str, Any]]:
    return [_file(option, base / path) for path in paths.split(",")]


def _file(option: str, path: Path) -> dict[str, Any]:
    """Name, size in bytes and SHA-256 of a file; of a folder the name alone."""
    if path.is_dir():
        return {"name": path.name, "bytes": None, "sha256": None}
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest}
    except OSError as error:
        raise ConfigError(
            f"{option} names {path}, which cannot be read: {error.strerror}", "put the file back"
        ) from None
