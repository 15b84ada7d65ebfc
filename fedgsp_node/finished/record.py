"""Reads the directory of a run: its settings, what it recorded, and the files of its models."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from numpy.typing import NDArray

from fedgsp.errors import ConfigError, DataError
from fedgsp.files import check_regular, open_file, parse_json, whole_lines
from fedgsp.run_ids import is_run
from fedgsp.seeds import derive
from fedgsp.settings.recorded import load_recorded
from fedgsp.settings.run import RunConfig
from fedgsp.tensors.digests import check_digest
from fedgsp.tensors.headers import Kind, kinds
from fedgsp.trainings import TRAININGS, Training

FINAL = "final"
#: What the library raises for a file: also if there is no room to map it.
_UNREADABLE = (OSError, MemoryError, safetensors.SafetensorError)
_RESTORE = "restore it from a copy of the run directory"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model."""

    path: Path
    #: The clients that use the model; empty if all do.
    clients: tuple[int, ...]
    #: The round that made it.
    round: int

    @property
    def name(self) -> str:
        """As `--model` names it."""
        return self.path.stem

    def tensors(self, check: Callable[[Mapping[str, Kind]], None]) -> dict[str, NDArray[Any]]:
        """The tensors by name, after `check` has got the kinds that the header names.

        Raises DataError if the file is cut or changed, and what `check` raises: then no value is read.
        """
        try:
            with safetensors.safe_open(self.path, framework="numpy") as file:
                said, named = file.metadata() or {}, kinds(file)
                check(named)
                tensors = {name: file.get_tensor(name) for name in named}
        except (*_UNREADABLE, ValueError, TypeError, AttributeError) as error:  # a dtype that numpy lacks
            raise DataError(f"{self.path} cannot be read: {error}", _RESTORE) from None
        check_digest(self.path, tensors, said, _RESTORE)
        return tensors


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What the directory of a run says."""

    path: Path
    run_id: str
    config: RunConfig
    finished: bool
    #: Digests of the tensors that do not travel, by name; None if the run did not record them.
    constants: Mapping[str, bytes] | None
    #: The options of the task that were equal on all nodes; empty if the run did not record them.
    task_options: Mapping[str, str]
    models: tuple[ModelFile, ...]

    @property
    def constants_seed(self) -> int:
        """The seed from which nodes made their model, and so the tensors that do not travel."""
        return derive(self.config.seed, "initial-weights")

    @property
    def training(self) -> Training:
        """How clients trained. A scheme with a training that is not plain SGD has its name."""
        name = self.config.training or self.config.scheme
        return TRAININGS[name if name in TRAININGS else "sgd"]

    def model(self, name: str, client: int | None) -> ModelFile:
        """The file of the model `name`, of the client's group if there are several; raises ConfigError without one."""
        found = [one for one in self.models if one.name == name or one.name.startswith(f"{name}-group-")]
        if not found and name == FINAL and not self.finished:
            raise ConfigError(
                f"the run in {self.path} is not finished, so it has no final model",
                f"finish it (top-server --resume {self.path}), or give --model: {_names(self.models)}",
            )
        if not found:
            raise ConfigError(f"there is no model {name!r} in {self.path}", f"give --model: {_names(self.models)}")
        if client is None and len(found) == 1:
            return found[0]
        if client is None:
            whose = "; ".join(f"{one.name} of {_listed(one.clients)}" for one in found)
            raise ConfigError(f"the run has several models: {whose}", "give --client, or --model with such a name")
        for one in found:
            if not one.clients or client in one.clients:
                return one
        known = sorted(number for one in found for number in one.clients)
        raise ConfigError(
            f"client {client} has no model {name!r} in {self.path}", f"models are there for {_listed(known)}"
        )


def read(path: Path) -> RunRecord:
    """What a run directory says; raises ConfigError if it holds no run, DataError if it is damaged."""
    config, events = path / "config.toml", path / "events.jsonl"
    if not config.is_file() or not events.is_file():
        raise ConfigError(f"{path} holds no run", "give the directory of a run (the --run-dir of its top server)")
    try:
        started, finished = None, False
        for line in _lines(events):  # they may be millions
            kind = line["event"]
            started = line if started is None and kind == "run_started" else started
            finished = finished or kind == "run_finished"
        if started is None:
            raise ConfigError(f"the run in {path} never began", "give the directory of another run")
        if not is_run(started["run"]):
            raise ValueError("the id of the run is none")
        recorded = started.get("constants")
        told = {str(key): str(value) for key, value in (started.get("task_options") or {}).items()}
        constants = None if recorded is None else {name: bytes.fromhex(one) for name, one in recorded.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{events} is damaged ({type(error).__name__}: {error})", _RESTORE) from None
    models = tuple(_model(file) for file in sorted((path / "models").glob("*.safetensors")))
    return RunRecord(path, started["run"], load_recorded(config), finished, constants, told, models)


def _lines(path: Path) -> Iterator[Any]:
    with open_file(path) as file:
        for line in whole_lines(file):
            yield parse_json(line)


def _model(path: Path) -> ModelFile:
    try:
        check_regular(path)
        with safetensors.safe_open(path, framework="numpy") as file:
            said = file.metadata() or {}
        clients = tuple(int(client) for client in said.get("clients", "").split(",") if client)
        return ModelFile(path, clients, int(said["round"]))
    except (*_UNREADABLE, KeyError, ValueError) as error:
        raise DataError(f"{path} is no model of a run ({type(error).__name__}: {error})", _RESTORE) from None


def _names(models: tuple[ModelFile, ...]) -> str:
    return ", ".join(one.name for one in models) or "there is none yet"


def _listed(clients: Any) -> str:
    return f"clients {','.join(map(str, clients))}" if clients else "all clients"
