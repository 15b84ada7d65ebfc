"""Trackers: other systems that show the figures of a run, while it goes on or afterwards."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgsp.errors import ConfigError
from fedgsp.options import suggestion
from fedgsp.parts import Parts
from fedgsp.settings.fields import setting
from top_server.tracking.base import Tracker, refuse_password

#: The option that `--track NAME=VALUE` sets.
TO = "to"
_CLIENTS_HELP = "also the figures of single clients"


@dataclass(frozen=True, slots=True)
class TensorBoardOptions:
    """Options of tracker `tensorboard`."""

    to: Path | None = setting(
        None, "folder that gets a folder with the name of the run directory; the run directory itself by default"
    )
    clients: bool = setting(True, _CLIENTS_HELP)


@dataclass(frozen=True, slots=True)
class MlflowOptions:
    """Options of tracker `mlflow`."""

    to: str = setting("", "URI of the tracking server, such as http://127.0.0.1:5000")
    experiment: str = setting("fedgsp", "name of the experiment; it is made if there is none")
    clients: bool = setting(True, _CLIENTS_HELP)


def _check_mlflow(options: MlflowOptions) -> None:
    if not options.to:
        raise ConfigError("tracker mlflow needs the URI of a tracking server", "write mlflow=URI")
    refuse_password("the URI of tracker mlflow", options.to)
    if not options.experiment.strip():
        raise ConfigError("option experiment of tracker mlflow is empty", "leave it out, or give a name")


TRACKERS: Parts[Tracker] = Parts(
    "tracker",
    {
        "tensorboard": Tracker(
            help="event files for TensorBoard",
            code="top_server.tracking.tensorboard:TensorBoard",
            options=TensorBoardOptions,
            packages={"tensorboard": "tensorboard>=2.20"},
        ),
        "mlflow": Tracker(
            help="a run of an MLflow tracking server",
            code="top_server.tracking.mlflow:Mlflow",
            options=MlflowOptions,
            packages={"mlflow": "mlflow-skinny>=3.1"},
            check=_check_mlflow,
        ),
    },
    Tracker,
)


def chosen(flag: str, texts: Iterable[str], options: Mapping[str, str]) -> list[tuple[Tracker, Any]]:
    """The trackers that texts NAME or NAME=VALUE of a flag name, with their options NAME.KEY=VALUE.

    Raises ConfigError for what cannot be used, before anything is tracked.
    """
    found: list[tuple[Tracker, Any]] = []
    left = dict(options)
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in TRACKERS:
            raise ConfigError(f"{flag} cannot be {name!r}", suggestion(name, TRACKERS))
        if name in [tracker.name for tracker, _ in found]:
            raise ConfigError(f"{flag} {name} is given twice", "give it once")
        own = {key.removeprefix(f"{name}."): left.pop(key) for key in options if key.startswith(f"{name}.")}
        if equals and own.setdefault(TO, value) != value:
            raise ConfigError(f"{flag} {text} and option {name}.{TO} differ", "give one of them")
        found.append((TRACKERS[name], TRACKERS[name].usable(own)))
    for name in left:
        raise ConfigError(f"option {name} is for no tracker of {flag}", f"write NAME.KEY=VALUE, and {flag} NAME too")
    return found
