"""The options of place `ray`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedgsp.connections.addresses import check_address
from fedgsp.errors import ConfigError
from fedgsp.settings.fields import setting
from top_server.placing.base import RemoteOptions

#: The cluster that Ray finds by itself, and one that is made on this machine for the run.
AUTO, LOCAL = "auto", "local"
#: How an address of a Ray client server begins.
CLIENT = "ray://"


@dataclass(frozen=True, slots=True)
class RayOptions(RemoteOptions):
    """Options of place `ray`."""

    address: str = setting(
        AUTO,
        "the cluster: that of RAY_ADDRESS or of this machine (auto), ray://HOST:PORT, HOST:PORT, or one that is made"
        " on this machine for the run (local)",
    )
    working_dir: Path | None = setting(
        None, "folder that Ray copies to the machines of workers, which run there; such as that of your task's module"
    )


def check(options: RayOptions) -> None:
    """Raises ConfigError for options that Ray would refuse later, in other words."""
    if options.address not in (AUTO, LOCAL):
        check_address("option address of place ray", options.address.removeprefix(CLIENT))
    ConfigError.require(
        options.gpus <= 1 or float(options.gpus).is_integer(),
        f"option gpus of place ray is {options.gpus:g}, and Ray gives a part of one GPU or whole GPUs",
        "give a number up to 1, or a whole number",
    )
    ConfigError.require(
        options.working_dir is None or options.working_dir.is_dir(),
        f"option working_dir of place ray is {options.working_dir}, which is no folder",
        "give a folder of this machine",
    )
