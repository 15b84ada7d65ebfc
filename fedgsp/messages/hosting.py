# Made by scripts/protos.py from protos/fedgsp/v1/hosting.proto; do not edit.
"""Between the top server and the workers on whose machines it runs group managers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HostMessage:
    """A message from a worker to the top server. The first one is a Hosting."""

    kind: Hosting | ManagerReady | ManagerEnded | None


@dataclass(frozen=True, slots=True)
class Hosting:
    """The worker can run group managers."""

    #: Name of the worker, as a node.
    node: str
    run_id: str
    #: The host by which others dial its managers.
    machine: str


@dataclass(frozen=True, slots=True)
class ManagerReady:
    """A manager runs."""

    manager: str
    #: host:port where nodes and the top server dial it.
    address: str
    #: Process id on its machine.
    pid: int


@dataclass(frozen=True, slots=True)
class ManagerEnded:
    """A manager has ended, or could not be started."""

    manager: str
    reason: str


@dataclass(frozen=True, slots=True)
class HostOrder:
    """A message from the top server to a worker. The first one is Admitted."""

    kind: StartManager | StopManager | Admitted | None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The worker may run managers."""

    #: Without TLS: shows that the top server knows the key of this user's processes. Empty otherwise.
    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class StartManager:
    """Asks the worker to start a group manager."""

    manager: str
    #: The key of the run, by which the manager makes and checks tickets.
    run_key: bytes = field(repr=False)
    #: The manager's own certificate with its key, in PEM. Empty: it uses those of the worker.
    certificate: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class StopManager:
    """Asks the worker to end a group manager."""

    manager: str
    #: Seconds after which the manager is killed.
    grace_s: float
