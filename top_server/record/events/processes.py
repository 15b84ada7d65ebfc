"""Events of nodes and group managers."""

from collections.abc import Mapping

from top_server.record.events.base import ABSENT, Event, told


class WaitingForNodes(Event):
    """The top server begins to wait for nodes before the first round."""

    nodes: int = told("number of nodes that must join")
    clients: int = told("number of clients that they must host")
    timeout: float = told("seconds")


class WaitingForClients(Event):
    """A resumed run begins to wait for the clients that it had."""

    clients: int = told("number of clients that took part before the interruption")
    timeout: float = told("seconds until at least one node must be back")


class NodeJoined(Event):
    """A node is admitted."""

    node: str
    away: float = told("seconds since it left, if it has left this run before", default=ABSENT)
    clients: int = told("number of clients that the node hosts")
    names: Mapping[int, str] = told("what people call its clients, by number", default=ABSENT)
    other_data: str = told(
        "clients that have other numbers of samples than when they joined before, with both numbers", default=ABSENT
    )
    address: str | None = told("where other nodes dial this node; null if they cannot")
    task_digest: str | None = told("first 16 digits of the SHA-256 of the task's source file; null if it has none")
    differs_from: str | None = told("the first node of the run, if its task has another digest; else null")
    device: str = told("where the node trains, as it says: `cpu`, or a GPU with its name")
    memory: int = told("bytes of memory of this device; 0 if the node does not know")
    torch: str = told("version of torch on the node")


class NodeRefused(Event):
    """A node is refused. Refusals of nodes that come when the run is over are not recorded; see `nodes_refused`."""

    node: str
    reason: str


class NodesRefused(Event):
    """Further nodes were refused. Only the first ten refusals of a minute are recorded one by one."""

    refusals: int = told("number of refusals that were not recorded one by one")


class NodeEnrolled(Event):
    """An invited node has used its invitation and has a certificate."""

    node: str


class NodeRevoked(Event):
    """`top-server revoke` has taken effect: the node may not come back without a new invitation."""

    node: str


class IdentityUsedTwice(Event):
    """Another process with the certificate of a node has taken the place of one that was connected.

    For each node, only the first, tenth, hundredth, thousandth (and so on) time is recorded.
    """

    node: str
    older: str = told("address of the process that was connected")
    newer: str = told("address of the process that took its place")
    times: int = told("how often this has happened to the node in this run")
    reason: str


class NodeLeft(Event):
    """The connection of a node ended: the node was dismissed, or it was stopped, or it cannot be reached any more."""

    node: str
    reason: str = told("`dismissed` when the run is over")


class WorkerEnded(Event):
    """The process of a worker, a node that the run has started itself, ended before the run was over."""

    node: str
    code: int | None = told("its exit code, negative for a signal; null if its place does not know it")
    reason: str = told("why it ended, as far as its place knows, with the end of its log")


class ClientLeftOut(Event):
    """Three models of a client were refused: the client is left out of the rest of the run."""

    client: int
    reason: str


class ManagersStarting(Event):
    """The round has more groups than there are group managers for, so the top server starts more of them."""

    managers: int = told("number of managers that start")


class ManagerSpawned(Event):
    """A group manager runs."""

    manager: str
    pid: int = told("process id")
    address: str = told("where nodes attach")
    node: str = told("the worker on whose machine it runs, if not beside the top server", default=ABSENT)
    managers: int = told("number of managers that start together")
    ready: int = told("number of these managers that run by now")


class ManagerNotStarted(Event):
    """A group manager could not be started. If another one can take its group, the run goes on."""

    manager: str
    reason: str


class ManagerLost(Event):
    """A group manager died, or did not answer."""

    manager: str
    reason: str


class ManagerStopped(Event):
    """The top server stopped a group manager that had taken over groups of a lost one and is not needed any more."""

    manager: str
