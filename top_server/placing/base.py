"""The contract of places. A place starts the nodes of a run, its workers: on this machine, or in a cluster.

The top server makes one `Placing` for each of its starts, and calls it in its event loop:

1. `start` with all workers. It may be called again with further ones.
2. `stop` with names of workers, or without for all of them. It is always called in the end, also if `start` failed.

Between these calls the place tells each end of a worker by `About.tell`, in the event loop. A place may start a worker
again by itself, for example after a scheduler has taken its machine: it tells the end with `returns`, and the worker
joins under the same name when it is back. To the run, a worker is a node like all others: one that is away is missing
in rounds, and one that returns takes part again.

What a place must keep:

- Never two processes of one name at a time: both would write into one state folder.
- `Worker.arguments` is the command line of a worker. `Worker.secrets` are its certificate and its key. They get to the
  worker as files that only its user can read: never on a command line, in the environment, or in a log.
- The output of a worker goes to the end of `Worker.log`, at the latest when the worker has ended.
- A worker ends with its place: after `stop`, none is left, also if this process was killed in between. If a place
  cannot see to that when this process is killed, its next `start` in the same run directory ends what is left.
- Every wait has a deadline, and every failure is a UserError, or an `Ended` with a reason.

The model does not depend on the place: clients are dealt over workers by number, and each draws its own random
numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedgsp.connections.addresses import is_near
from fedgsp.files import private, write_secret
from fedgsp.parts import PartWithNeeds
from fedgsp.settings.fields import setting
from fedgsp.settings.flags import arguments_of
from fedgsp.settings.run import NodeSettings

#: The module that a worker runs, with its command.
COMMAND = ("fedgsp_node", "start")
#: The secrets of a worker by name: the certificate of the CA, and its own certificate with the key.
CA, OWN = "ca.pem", "node.pem"


@dataclass(frozen=True, slots=True)
class Resources:
    """What a process needs of its machine. Places that only count whole processors or GPUs round up."""

    cpus: float = 1
    gpus: float = 0
    #: In MiB; 0: what the place gives.
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that a place starts."""

    #: Its name as a node, and in the name of its log.
    name: str
    #: All its settings but those that depend on its machine: see `arguments`.
    settings: NodeSettings
    log: Path
    resources: Resources = Resources()
    #: Its certificate, its key and the certificate of the CA, by CA and OWN; empty without TLS, or if the worker may
    #: use the files of the top server.
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    #: Modules that a template of such processes imports before it forks.
    imports: Sequence[str] = ()

    def on(self, host: str, folder: Path) -> NodeSettings:
        """Its settings on a machine that other workers dial at `host`, where `folder` has its secrets as files."""
        # A name may stand for loopback on its own machine, so that a worker that is dialled listens everywhere.
        near = is_near(host)
        dialled = replace(
            self.settings,
            peer_listen=f"{host}:0" if near else "0.0.0.0:0",
            advertise=None if near else f"{host}:0",
        )
        if not self.secrets:
            return dialled
        return replace(dialled, tls_ca=folder / CA, tls_cert=folder / OWN, tls_key=folder / OWN)

    def arguments(self, host: str, folder: Path) -> list[str]:
        """Its command line on such a machine: a module and its arguments, for `lifecycle.python_module`."""
        # The name comes first, because `ps` may show only the beginning.
        settings = replace(self.on(host, folder), name=None)
        return [*COMMAND, "--name", self.name, *arguments_of(settings)]

    def write(self, folder: Path) -> None:
        """Puts its secrets, if it has any, into `folder`, which only this user can enter; raises RunError."""
        if self.secrets:
            private(folder)
        for name, content in self.secrets.items():
            write_secret(folder / name, content, lasting=False)


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker has ended."""

    worker: str
    #: Its exit code, negative for a signal; None if the place does not know it.
    code: int | None
    #: Why, in words of the place: "preempted", "its machine is lost"; empty if the exit code says all.
    reason: str = ""
    #: Whether the place starts it again by itself.
    returns: bool = False


@dataclass(frozen=True, slots=True)
class About:
    """What a place knows of a run."""

    #: Id of the run; a resumed run keeps it.
    run: str
    #: The place's own folder in the directory of the run. Only this user can enter it, and it stays for --resume.
    folder: Path
    #: Is to be told each end of a worker.
    tell: Callable[[Ended], None]


class Placing(ABC):
    """A place at work for one run. The constructor gets the options of the place, and does nothing that takes long."""

    def __init__(self, options: Any, about: About) -> None:
        self.options = options
        self.about = about

    @abstractmethod
    async def start(self, workers: Sequence[Worker]) -> None:
        """Starts workers, or asks for their start; raises UserError if that cannot be done."""

    @abstractmethod
    async def stop(self, names: Collection[str] | None = None) -> None:
        """Ends these workers, or all of them, and returns when they have ended, or after a deadline of its own.

        Workers get SIGTERM first. Names of workers that have ended are allowed. Ends that it causes need not be told.
        """


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Options of every place whose workers may be on other machines."""

    host: str = setting(
        "", "host name or address by which workers reach the top server; by default the name of this machine"
    )
    cpus: float | None = setting(None, "processors of each worker; by default as many as --threads", above=0)
    gpus: float = setting(0.0, "GPUs of each worker", least=0)
    memory: int = setting(0, "memory of each worker in MiB; 0: what the place gives", least=0)
    start_timeout: float = setting(
        3600.0, "seconds until all workers must run; the run ends if the place does not start them", above=0
    )

    def resources(self, threads: int) -> Resources:
        """The resources of a worker that trains with so many threads."""
        return Resources(self.cpus or threads, self.gpus, self.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(PartWithNeeds):
    """The declaration of a place. Its code is a subclass of `Placing`.

    Workers of a `remote` place may be on other machines. Its options are a subclass of `RemoteOptions`. The run then
    listens where other machines reach it, and gives every worker a certificate.
    """

    remote: bool = False
    #: Names of options that can name a command, code or another cluster: a record alone does not choose them.
    runs: tuple[str, ...] = ()
