"""Which nodes take part, and which clients they host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from fedgsp.channels import is_wildcard, split_address
from fedgsp.errors import ConfigError
from fedgsp.messages import (
    MOST_CLIENT,
    MOST_CLIENTS_OF_NODE,
    MOST_SAMPLES,
    PROTOCOL,
    TASK_DIGEST_BYTES,
    AttachTo,
    Failure,
    FailureCode,
    Hello,
    HostedClient,
    Leave,
    Member,
    RelayMode,
    TensorSpec,
    Welcome,
)
from fedgsp.options import same, shortened
from fedgsp.weights import WeightsError, check_same_tensors, total_bytes
from top_server.record.journal import Recorder

logger = logging.getLogger(__name__)

#: A client is left out after so many.
MOST_OFFENCES = 3
#: How long a run waits for the clients that it had, all of whom were lost; nodes try to join every five seconds.
RETURN_TIMEOUT_S = 30.0
#: A node keeps a connection open, for which this process holds about 70 KiB and a file descriptor.
MOST_NODES = 20_000
#: Each round goes through all clients several times, at some microseconds each.
MOST_CLIENTS = 1_000_000


@dataclass(slots=True)
class Node:
    """A node that joined; None in `outbox` ends its stream."""

    hello: Hello
    outbox: asyncio.Queue[Welcome | Failure | AttachTo | Leave | None] = field(default_factory=asyncio.Queue)
    #: The managers that it was told of, by name.
    managers: dict[str, AttachTo] = field(default_factory=dict)


class Membership:
    """Invariant: a client id belongs to one node, and all nodes have the same task, classes and model."""

    def __init__(
        self,
        run_id: str,
        task: str,
        relay: RelayMode,
        recorder: Recorder,
        task_options: Mapping[str, str] | None = None,
    ) -> None:
        self._run_id = run_id
        self._task = task
        self._task_options = task_options or {}  # those that the run was started with
        self._relay = relay
        self._recorder = recorder
        self._nodes: dict[str, Node] = {}
        self._clients: dict[int, tuple[HostedClient, Node]] = {}
        self._left: dict[str, dict[str, AttachTo]] = {}  # what nodes that left had been told, the latest last
        self._standard: Hello | None = None  # the first admitted node sets it; fixed once a node was given work
        self._working = False
        self._changed = asyncio.Condition()
        self._over: Leave | None = None
        #: Client -> how often what it handed on could not be gone on from.
        self.offences: dict[int, int] = {}

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """What the run's model looks like; empty before the first node joined."""
        return self._standard.tensors if self._standard else ()

    @property
    def num_classes(self) -> int:
        """Length of the class histograms."""
        return self._standard.num_classes if self._standard else 0

    @property
    def training_flop(self) -> int:
        """Operations to train the model on one sample, as the first node counted them; 0 if it could not."""
        return self._standard.training_flop if self._standard else 0

    @property
    def nodes(self) -> int:
        """How many nodes are there."""
        return len(self._nodes)

    @property
    def clients(self) -> dict[int, HostedClient]:
        """All clients that are there, by ascending id."""
        return {client: self._clients[client][0] for client in sorted(self._clients)}

    def member(self, client: int) -> Member | None:
        """Where a client is, or None if its node left."""
        if client not in self._clients:
            return None
        hosted, node = self._clients[client]
        return Member(client, node.hello.node, node.hello.peer_address, hosted.train_samples)

    async def admit(self, hello: Hello) -> Node | Failure:
        """A new node, or why it is refused."""
        refusal = self._refusal(hello)
        if refusal is not None:
            if refusal.code is not FailureCode.RUN_OVER:  # dismissed nodes look for the next run: no news
                self._recorder.record("node_refused", node=hello.node, reason=str(refusal))
            return refusal
        self._standard = self._standard or hello
        node = self._nodes[hello.node] = Node(hello)
        self._clients.update({hosted.client: (hosted, node) for hosted in hello.clients if self._bears(hosted.client)})
        node.outbox.put_nowait(Welcome(self._run_id))
        for manager in self._left.pop(hello.node, {}).values():
            self.attach(hello.node, manager)  # one that has a group with this node would wait for it in vain
        self._recorder.record(
            "node_joined",
            node=hello.node,
            clients=len(hello.clients),
            address=hello.peer_address or None,
            task_digest=_beginning(hello.task_digest) or None,
            differs_from=self._differs_from(hello),
        )
        await self._notify()
        return node

    async def leave(self, node: Node, reason: str) -> None:
        """A node's stream ended."""
        if self._nodes.get(node.hello.node) is not node:
            return
        del self._nodes[node.hello.node]
        for hosted in node.hello.clients:
            self._clients.pop(hosted.client, None)
        if not self._nodes and not self._working:
            self._standard = None
        if node.managers:
            self._left[node.hello.node] = node.managers
            if len(self._left) > MOST_NODES:
                del self._left[next(iter(self._left))]
        if self._over is not None:
            reason = "dismissed"  # whichever side closed the stream first
        self._recorder.record("node_left", node=node.hello.node, reason=reason)
        await self._notify()

    async def wait_for(self, nodes: int, clients: int, timeout_s: float) -> bool:
        """Waits until so many nodes and clients are there; False if they are not after the timeout."""
        return await self._until(lambda: len(self._nodes) >= nodes and len(self._clients) >= clients, timeout_s)

    async def wait_for_all(self, clients: Collection[int], timeout_s: float) -> set[int]:
        """Waits until all of these clients are there; those that are not after the timeout."""

        def missing() -> set[int]:
            return {client for client in clients if client not in self._clients and self._bears(client)}

        await self._until(lambda: not missing(), timeout_s)
        return missing()

    def note_offence(self, client: int) -> None:
        """A client handed on what nobody can use; after several times it is left out of the run."""
        self.offences[client] = self.offences.get(client, 0) + 1
        if not self._bears(client) and self._clients.pop(client, None) is not None:
            reason = f"{self.offences[client]} times its model was refused"
            self._recorder.record("client_left_out", client=client, reason=reason)

    def attach(self, node_name: str, manager: AttachTo) -> None:
        """Tells a node to dial a manager; one that is attached already does nothing."""
        node = self._nodes.get(node_name)
        if node is not None:
            self._working = True
            node.managers[manager.manager] = manager
            node.outbox.put_nowait(manager)

    async def dismiss(self, leave: Leave, timeout_s: float) -> None:
        """Tells all nodes that the run is over, and waits until they have gone."""
        self._over = leave
        for node in self._nodes.values():
            node.outbox.put_nowait(leave)
            node.outbox.put_nowait(None)
        await self._until(lambda: not self._nodes, timeout_s)

    async def _until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until something holds of who is there; False if it does not after the timeout."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError:
            return False
        return True

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _bears(self, client: int) -> bool:
        return self.offences.get(client, 0) < MOST_OFFENCES

    def _differs_from(self, hello: Hello) -> str | None:
        """The first node, if this one is known to run another version of the task, which is warned of.

        It is not refused: files may differ in nothing but line endings, and a task may be replaced node by node.
        """
        first = self._standard
        if first is None or not hello.task_digest or not first.task_digest or hello.task_digest == first.task_digest:
            return None
        logger.warning(
            "node %r has another version of the task (SHA-256 %s) than node %r, the first to join, had (%s): %s",
            shortened(hello.node),
            _beginning(hello.task_digest),
            shortened(first.node),
            _beginning(first.task_digest),
            "give both the same file" if ":" in hello.task else "install the same version of fedgsp on both",
        )
        return first.node

    def _refusal(self, hello: Hello) -> Failure | None:
        if self._over is not None:
            return Failure(FailureCode.RUN_OVER, "the run is over: join the next one")
        if hello.protocol != PROTOCOL:
            detail = f"it speaks protocol {hello.protocol}, this server {PROTOCOL}: install the same version of fedgsp"
            return Failure(FailureCode.WRONG_PROTOCOL, detail)
        if len(hello.task_digest) not in (0, TASK_DIGEST_BYTES):
            detail = f"the digest of its task has {len(hello.task_digest)} bytes, not {TASK_DIGEST_BYTES}"
            return Failure(FailureCode.WRONG_PROTOCOL, f"{detail}: install the same version of fedgsp")
        if not hello.clients:
            return Failure(FailureCode.NO_CLIENTS, "it hosts no client: give it --clients")
        if hello.node in self._nodes:
            detail = f"a node named {hello.node!r} is already part of the run: give this one another --name"
            return Failure(FailureCode.NAME_TAKEN, detail)
        if hello.task != self._task:
            detail = f"it has task {hello.task!r}, the run is for {self._task!r}: start it with --task {self._task}"
            return Failure(FailureCode.WRONG_TASK, detail)
        if self._relay is RelayMode.DIRECT and not hello.peer_address:
            detail = "the run relays directly, and its peers cannot dial it: start it with --peer-listen"
            return Failure(FailureCode.CANNOT_BE_DIALLED, detail)
        if hello.peer_address and not _can_be_dialled(hello.peer_address):
            detail = f"peers cannot dial {hello.peer_address!r}: correct its --advertise, or --peer-listen"
            return Failure(FailureCode.CANNOT_BE_DIALLED, detail)
        checks = (self._size_refusal, self._clients_refusal, self._options_refusal, self._model_refusal)
        return next((refusal for check in checks if (refusal := check(hello))), None)

    def _size_refusal(self, hello: Hello) -> Failure | None:
        clients, all_clients = len(hello.clients), len(self._clients) + len(hello.clients)
        if len(self._nodes) >= MOST_NODES:
            detail = f"{MOST_NODES:,} nodes are there, and more a run cannot have: host more clients on each"
        elif clients > MOST_CLIENTS_OF_NODE:
            detail = f"it hosts {clients:,} clients, a node can have {MOST_CLIENTS_OF_NODE:,}: start more nodes"
        elif all_clients > MOST_CLIENTS:
            detail = f"with it there would be {all_clients:,} clients, a run can have {MOST_CLIENTS:,}: host fewer"
        else:
            return None
        return Failure(FailureCode.TOO_MANY, detail)

    def _clients_refusal(self, hello: Hello) -> Failure | None:
        own: set[int] = set()
        for hosted in hello.clients:
            if hosted.client in own:
                detail = f"it names client {hosted.client} twice: choose other --clients"
                return Failure(FailureCode.CLIENT_TAKEN, detail)
            own.add(hosted.client)
            if hosted.client > MOST_CLIENT:
                return Failure(FailureCode.WRONG_TASK, f"it names client {hosted.client}: ids end at {MOST_CLIENT}")
            if max(hosted.train_samples, hosted.test_samples) > MOST_SAMPLES:
                detail = f"client {hosted.client} cannot have more than {MOST_SAMPLES} samples: mend its task"
                return Failure(FailureCode.WRONG_TASK, detail)
            if hosted.client in self._clients:
                owner = self._clients[hosted.client][1].hello.node
                detail = f"client {hosted.client} is already hosted by node {owner!r}: choose other --clients"
                return Failure(FailureCode.CLIENT_TAKEN, detail)
        return None

    def _options_refusal(self, hello: Hello) -> Failure | None:
        theirs = [("this run", self._task_options)]
        if self._standard is not None:
            theirs.append((f"node {self._standard.node!r}", self._standard.task_options))
        for whose, options in theirs:
            for key in sorted(hello.task_options.keys() & options.keys()):
                own, other = hello.task_options[key], options[key]
                if not same(own, other):
                    detail = f"its task has {key}={own}, that of {whose} {key}={other}"
                    remedy = f"give all the same --task-option, or name {key} in the task's local_options"
                    return Failure(FailureCode.WRONG_TASK, f"{detail}: {remedy}")
        return None

    def _model_refusal(self, hello: Hello) -> Failure | None:
        if self._standard is None:
            try:
                total_bytes(hello.tensors)
            except WeightsError as error:
                return Failure(error.failure.code, f"{error.failure.detail}: change the model of its task")
            return None
        first = self._standard
        if hello.num_classes != first.num_classes:
            detail = f"its task has {hello.num_classes} classes, that of node {first.node!r} {first.num_classes}"
            return Failure(FailureCode.WRONG_TASK, f"{detail}: give all nodes the same task options")
        try:
            check_same_tensors(hello.tensors, first.tensors, f"the model of node {hello.node!r}")
        except WeightsError as error:
            detail = f"{error.failure.detail} by node {first.node!r}: give all nodes the same task options"
            return Failure(FailureCode.WRONG_SHAPES, detail)
        return None


def _beginning(digest: bytes) -> str:
    """As much as a person compares."""
    return digest.hex()[:16]


def _can_be_dialled(address: str) -> bool:
    try:
        host, port = split_address(address)
    except ConfigError:
        return False
    return port > 0 and not is_wildcard(host)
