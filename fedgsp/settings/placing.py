"""The settings of the nodes that a run starts itself, on this machine or in a cluster."""

from dataclasses import dataclass

from fedgsp.errors import ConfigError, Refusal
from fedgsp.settings.devices import DEVICES, check_device
from fedgsp.settings.fields import setting
from fedgsp.settings.run_files import RunFiles

PROCESSES = "Processes"
#: The place of `--local-nodes`.
LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceSettings(RunFiles):
    """Settings of the workers of a run: the nodes that it starts."""

    place: str | None = setting(
        None,
        "where the run itself starts nodes, which are called workers; by default it starts none",
        may_change=True,
        panel=PROCESSES,
    )
    place_option: dict[str, str] = setting(
        {}, "an option of the place; repeatable", options_of="place", may_change=True, panel=PROCESSES
    )
    workers: int = setting(0, "number of workers that --place starts", least=0, panel=PROCESSES)
    local_nodes: int = setting(
        0, "number of workers on this machine: short for --place local --workers N", least=0, panel=PROCESSES
    )
    clients: int | None = setting(
        None, "number of clients that the workers host together: 0 to N - 1", least=1, panel=PROCESSES
    )
    place_managers: bool = setting(
        False,
        "run group managers on the machines of the workers, and not beside the top server",
        may_change=True,
        panel=PROCESSES,
    )
    threads: int = setting(
        1,
        "threads of each worker; another number may change the last bits of the models",
        least=1,
        most=1024,
        panel=PROCESSES,
    )
    device: str = setting("cpu", f"where the workers train: {DEVICES}", metavar="DEVICE", panel=PROCESSES)

    @property
    def placed(self) -> str | None:
        """The place where the run starts nodes; None if it starts none."""
        return self.place or (LOCAL if self.local_nodes else None)

    @property
    def workers_to_place(self) -> int:
        """The number of nodes that the run starts."""
        return self.workers or self.local_nodes

    def check_together(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        RunFiles.check_together(self)
        check_device(self.device)
        count = f"--local-nodes {self.local_nodes}" if self.local_nodes else f"--workers {self.workers}"
        refusals: tuple[Refusal, ...] = (
            (
                self.local_nodes and (self.workers or self.place not in (None, LOCAL)),
                f"{count} is short for --place {LOCAL} --workers, which are given too",
                "drop --local-nodes",
            ),
            (
                self.place is not None and not self.workers_to_place,
                f"--place {self.place} is given without the number of nodes",
                "give --workers",
            ),
            (
                self.workers and self.place is None,
                f"{count} is given without a place",
                "give --place, or --local-nodes in place of --workers",
            ),
            (
                self.place_managers and not self.workers_to_place,
                "--place-managers needs the machines of nodes that the run starts, and there are none",
                "give --place and --workers too, or drop it",
            ),
            (
                self.clients is not None and not self.workers_to_place,
                "--clients is for nodes that the run starts, and there are none",
                "give --local-nodes too, or --place and --workers",
            ),
            (
                self.clients is None and self.workers_to_place > 1,
                f"{count} is given without the number of clients",
                "give --clients, the number of clients",
            ),
            (
                self.clients is not None and 0 < self.clients < self.workers_to_place,
                f"{count} is more than --clients {self.clients}",
                "give every node at least one client",
            ),
        )
        ConfigError.refuse(refusals)
