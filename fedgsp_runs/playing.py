"""Plays runs on this machine: a top server as a child process, with local nodes."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import numbers
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from fedgsp.commands import python_path
from fedgsp.errors import ConfigError, DataError, PeerError, RunError, TaskError, UserError, not_started
from fedgsp.options import suggestion
from fedgsp.processes.lifecycle import LIFELINE_VARIABLE, python_module
from fedgsp.settings.fields import described
from fedgsp.settings.files import parse
from fedgsp.settings.others import waits_for_others
from fedgsp.settings.run import RunConfig
from fedgsp.task import Task
from fedgsp_runs.places import made_in_its_place
from fedgsp_runs.progress import Progress
from fedgsp_runs.result import Run, warned
from fedgsp_runs.source import Source, found_by_nodes, place_of, source_of
from fedgsp_runs.texts import as_scalar, as_text, as_toml
from fedgsp_runs.values import directory_of, shown
from fedgsp_runs.words import in_python
from top_server.compared import differing
from top_server.record.directory import DEFAULT_PARENT, RunDirectory
from top_server.record.history import lines_of
from top_server.recorded import is_finished
from top_server.resume.state import is_in

#: Node processes, unless there are fewer clients or the caller says otherwise.
NODES = 2
#: How long a top server may take to stop its processes, in seconds, before it is killed.
STOP_S = 20.0
#: Lines of the output of a top server that an error quotes.
_TAIL = 5
#: Settings that `run` makes of an argument of its own, which is to be given in their place.
_OF_ARGUMENTS = {"local_nodes": "nodes", "workers": "nodes", "task_option": "options"}
#: What to do about a finished run of a sweep that has fewer rounds than are asked for.
_MORE_ROUNDS = "add rounds to it, extend({0!r}, rounds={1}), or give another `out`"
_ERRORS: Mapping[int, type[UserError]] = {
    error.exit_code: error for error in (ConfigError, TaskError, DataError, PeerError, RunError)
}


@in_python()
def run(
    task: str | Callable[..., Task] = "digits",
    *,
    options: Mapping[str, Any] | None = None,
    scheme: str = "fedgsp",
    rounds: int | None = None,
    clients: int | None = None,
    nodes: int | None = None,
    run_dir: Path | str | None = None,
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Plays a run on this machine and returns what it has recorded.

    `task` is the name of a task, as for `--task`, or a class. A class of a notebook or a script is written as a module
    into the run directory, with what it uses. `options` are the options of the task. `clients` is the number of
    clients, by default all of the task, on `nodes` node processes. `settings` are all other settings of a run, by the
    names that they have in TOML (docs/settings.md), such as `learning_rate=0.05` or `merge_option={"eta": 0.1}`. With
    `place`, the node processes are started there and not on this machine.

    Works in a notebook, in a script without a main guard, and in tests. If this process is interrupted or ends, all
    processes of the run end; `resume` continues it.

    Raises UserError: ConfigError for wrong settings, TaskError and DataError for a task that cannot be used, RunError
    if the run failed.
    """
    told: dict[str, Any] = {"scheme": scheme, "rounds": rounds, **settings}
    _check_names(told)
    _check_options(options)
    if not isinstance(scheme, str):
        raise ConfigError(f"`scheme` is {shown(scheme)}", 'give the name of a scheme, such as "fedgsp"')
    if run_dir is not None:
        run_dir = directory_of(run_dir, "run_dir")
    made = _made(task, options or {})
    count = made.num_clients if clients is None else as_scalar(clients)
    if isinstance(count, int) and count < 1:
        raise ConfigError(f"`clients` is {count}", "give a whole number of at least 1")
    few = min(NODES, count) if isinstance(count, int) else NODES  # other counts are refused below
    told |= {
        "task_option": options or {},
        "clients": count,
        "workers" if "place" in settings else "local_nodes": few if nodes is None else nodes,
    }
    if "place" not in settings:  # which may need another address
        told.setdefault("listen", "127.0.0.1:0")
    with _claimed(run_dir, scheme) as directory:
        source = source_of(task, directory)
        text = as_toml(told | {"task": source.name})
        config = parse(RunConfig, text, Path("run()"))  # before a process is started
        for why in () if {"place", "listen"} & settings.keys() else waits_for_others(config):  # nobody knows the port
            raise ConfigError(why, "lower it, or give `listen`, and start the other nodes")
        with _written(source, directory), tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "run.toml"
            file.write_text(text, encoding="utf-8")
            _play(["--config", str(file), "--run-dir", str(directory)], directory, source.folder, progress)
    return warned(Run(directory, made), progress)


@in_python()
def play_again(directory: Path, told: Mapping[str, Any]) -> Run:
    """The finished run of a directory, or the unfinished one, resumed; `told` are arguments of `run`.

    Raises ConfigError if the run has other settings than these, or cannot be resumed, and UserError as `run` does.
    """
    source = source_of(told.get("task", "digits"), directory)
    found, files = Run(directory, source.name), RunDirectory(directory)
    asked = _asked(found.settings, **{**told, "task": source.name})
    if name := differing(found.settings, asked):
        raise ConfigError(
            f"{directory} has {name}={getattr(found.settings, name)!r}, and {getattr(asked, name)!r} is asked for",
            _MORE_ROUNDS.format(str(directory), asked.rounds)
            if name == "rounds" and asked.rounds > found.settings.rounds and is_finished(lines_of(files.events))
            else "remove that directory, or give another `out`",
        )
    if is_finished(lines_of(files.events)):
        return found
    if is_in(files):
        return _continued(["--resume", str(directory)], directory, source.folder, told.get("progress", True))
    raise ConfigError(f"{directory} holds a run that cannot be resumed", "remove that directory")


def _continued(flags: list[str], directory: Path, folder: Path | None, progress: bool) -> Run:
    """Continues a run whose processes find its task in `folder`, by default as `place_of` says."""
    with contextlib.suppress(UserError):  # the top server says what is wrong with the record
        folder = folder or place_of(Run(directory).settings.task, directory)
    _play(flags, directory, folder, progress)
    return Run(directory, Run(directory).settings.task)


def _asked(
    found: RunConfig,
    *,
    task: str,
    options: Mapping[str, Any] | None = None,
    scheme: str = "fedgsp",
    clients: int | None = None,
    nodes: int | None = None,
    progress: bool = True,
    **settings: Any,
) -> RunConfig:
    """The settings of a run with these arguments of `run`, as far as they affect results.

    Without `clients`, a run has all clients of its task. The options of the task decide how many these are.
    """
    _check_names(settings)
    _check_options(options)
    told = {
        **settings,
        "task": task,
        "task_option": options or {},
        "scheme": scheme,
        "clients": found.clients if clients is None else clients,
    }
    return parse(RunConfig, as_toml(told), Path("run()"))


@in_python()
def resume(run_dir: Path | str, *, progress: bool = True) -> Run:
    """Continues an interrupted run of this package to its end. Raises UserError, as `run` does."""
    directory = _directory(run_dir)
    return warned(_continued(["--resume", str(directory)], directory, None, progress), progress)


@in_python()
def extend(run_dir: Path | str, rounds: int, *, progress: bool = True) -> Run:
    """Adds rounds to a finished run of this package; `rounds` is the number of all its rounds.

    The models have the bits of a run that had so many rounds from the start. Raises UserError, as `run` does, and
    ConfigError for a run that is not finished, or whose first rounds depend on the number of rounds.
    """
    directory = _directory(run_dir)
    if isinstance(rounds, bool) or not isinstance(rounds, numbers.Integral):
        raise ConfigError(f"`rounds` is {shown(rounds)}", "give the number of all rounds of the run")
    flags = ["--extend", str(directory), "--rounds", str(int(rounds))]
    return warned(_continued(flags, directory, None, progress), progress)


def _directory(run_dir: Path | str) -> Path:
    """The directory of a run that is to be continued; raises ConfigError if there is none."""
    directory = directory_of(run_dir, "run_dir")
    if not directory.is_dir():
        raise ConfigError(f"there is no directory {directory}", "give the directory of a run")
    return directory


def _check_names(told: Mapping[str, Any]) -> None:
    known = described(RunConfig)
    for name in told:
        if name in _OF_ARGUMENTS:
            raise ConfigError(f"{name} is no argument of `run`", f"give `{_OF_ARGUMENTS[name]}` in its place")
        if name not in known:
            raise ConfigError(f"there is no setting {name!r}", suggestion(name, known))


def _check_options(options: Any) -> None:
    if options is not None and not (isinstance(options, Mapping) and all(isinstance(name, str) for name in options)):
        raise ConfigError(f"`options` is {shown(options)}", 'give the options of the task by name: {"clients": 4}')


@contextlib.contextmanager
def _claimed(run_dir: Path | str | None, scheme: str) -> Iterator[Path]:
    """The directory of a run, which is made; if the run leaves no record there, what was made goes."""
    directory = Path(run_dir) if run_dir is not None else DEFAULT_PARENT
    try:
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        if run_dir is None:
            directory = _fresh(scheme)
            missing.insert(0, directory)
    except OSError as error:
        raise ConfigError(f"run_dir {directory} cannot be made: {error.strerror}", "give another") from None
    try:
        yield directory
    finally:
        if not RunDirectory(directory).events.is_file():
            with contextlib.suppress(OSError):  # unless something else is there
                for path in missing:
                    path.rmdir()


def _fresh(scheme: str) -> Path:
    """A new directory that is named after the time: several runs may begin in the same second."""
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{PurePath(scheme).name}"
    for path in map(DEFAULT_PARENT.joinpath, itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))):
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise AssertionError("the names do not end")


@contextlib.contextmanager
def _written(source: Source, directory: Path) -> Iterator[None]:
    """The module of a task, for a run that begins; it goes if that leaves no record."""
    try:
        source.write()
        yield
    finally:
        if not RunDirectory(directory).events.is_file():
            source.remove()


def _made(task: str | Callable[..., Task], options: Mapping[str, Any]) -> Task:
    """An instance of the task in this process, which tells its clients and makes models of results."""
    from fedgsp_node.tasks import build_task, load_task
    from fedgsp_node.tasks.loading import factory_of

    texts = {key: as_text(value) for key, value in options.items()}
    if isinstance(task, str):
        made = made_in_its_place(lambda: load_task(task, texts))
        _check_kinds(factory_of(task)[1], options)
        return made
    if not callable(task):
        raise TaskError(f"the task {task!r} is no class", "give a subclass of fedgsp.Task, or the name of a task")
    _check_kinds(task, options)
    name, module = getattr(task, "__name__", repr(task)), sys.modules[task.__module__]
    return made_in_its_place(lambda: build_task(name, module, task, texts))


def _check_kinds(factory: Callable[..., object], options: Mapping[str, Any]) -> None:
    """Raises ConfigError for an option that is no text, and would become one because nothing says its type."""
    with contextlib.suppress(TypeError, ValueError):  # no parameters are known: refused when the task is built
        for name, one in inspect.signature(factory).parameters.items():
            untold = one.annotation is one.empty and (one.default is None or one.default is one.empty)
            if untold and name in options and not isinstance(options[name], str | PurePath):
                raise ConfigError(
                    f"option {name} is {shown(options[name])}, and the task would get it as text",
                    f"say its type in the task, such as {name}: float | None = None",
                )


def _play(flags: list[str], directory: Path, folder: Path | None, progress: bool) -> None:
    """Runs a top server to its end, whose nodes find their task in `folder`; raises the error with which it ended."""
    view, failure = Progress(quiet=not progress), None
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log,
        _started(flags, found_by_nodes(folder, directory), log) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            failure = event if event.get("event") == "run_failed" else failure
            view.apply(event)
        code = child.wait()
        log.seek(0)
        words = [line.rstrip("\n") for line in log][-_TAIL:]
    if code == 0:
        return
    kind = _ERRORS.get(code, RunError)
    if failure is not None:
        where = f" (recorded in {directory})" if RunDirectory(directory).events.is_file() else ""
        raise kind(str(failure["reason"]), f"{failure['remedy']}{where}")
    told = next((line.removeprefix("error: ") for line in reversed(words) if line.startswith("error: ")), "")
    raise kind(told or f"the top server ended with exit code {code}; its output ends: {' | '.join(words)}")


@contextlib.contextmanager
def _started(flags: list[str], place: Mapping[str, str], log: Any) -> Iterator[subprocess.Popen[str]]:
    """A top server that ends with the block, and with this process, even if that is killed."""
    ours, theirs = socket.socketpair()
    environment = {
        LIFELINE_VARIABLE: "stdin",
        **place,
        "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", "")),
    }
    try:
        child = subprocess.Popen(
            [*python_module("top_server"), *flags, "--json"],
            stdin=theirs.fileno(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            env={**os.environ, **environment},
            start_new_session=True,  # a Ctrl-C reaches this process only, which then stops the run in order
        )
    except OSError as error:
        ours.close()
        raise not_started("the top server", error) from None
    finally:
        theirs.close()
    try:
        yield child
    finally:
        _stop(child)
        ours.close()


def _stop(child: subprocess.Popen[str]) -> None:
    """Ends a top server that still runs, and waits for it."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        try:
            child.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
    if child.stdout is not None:
        child.stdout.close()
