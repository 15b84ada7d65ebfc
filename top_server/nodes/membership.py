"""The nodes of a run, and the clients that they host."""

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from fedgsp import identity
from fedgsp.messages import (
    PROTOCOL,
    Additions,
    AttachTo,
    Failure,
    FailureCode,
    Hello,
    HostedClient,
    InstalledPart,
    Leave,
    Member,
    RelayMode,
    Revoked,
    TensorSpec,
    Welcome,
    WouldTake,
)
from fedgsp.processes.awake import Awake
from fedgsp.scoring import Scoring
from fedgsp.security import access
from fedgsp.security.access import Caller
from fedgsp.security.signing import fingerprint
from fedgsp.security.tickets import Issuer, Ticket, Verb
from fedgsp.tensors.additions import added_tensors
from top_server.nodes import callers
from top_server.nodes.admission import MOST_NODES, Known, Refusal, refusal
from top_server.nodes.changes import Changes
from top_server.nodes.declared import scoring_of
from top_server.nodes.departures import Cause, Departures
from top_server.nodes.node import Node
from top_server.nodes.refusals import Refusals
from top_server.nodes.replacing import Replacing
from top_server.nodes.told_clients import ToldClients
from top_server.nodes.told_names import ToldNames
from top_server.nodes.told_samples import ToldSamples
from top_server.nodes.versions import beginning, compared, differs_from
from top_server.record.audit import NO_AUDIT, Audit, who
from top_server.record.events.base import ABSENT
from top_server.record.events.processes import ClientLeftOut, NodeJoined, NodeLeft
from top_server.record.journal import Recorder
from top_server.record.room import dispensable

#: A client is left out of the run after so many rejected models.
MOST_OFFENCES = 3
#: A node that leaves within so many seconds after this process was frozen has left because of that.
AFTER_FREEZE_S = 5.0
_NOBODY = Hello(PROTOCOL, "", "", num_classes=0, clients=(), tensors=())


class Membership:
    """Invariant: a client id belongs to one node, and all nodes have the same task, classes and model."""

    def __init__(
        self,
        run_id: str,
        task: str,
        relay: RelayMode,
        recorder: Recorder,
        issuer: Issuer,
        task_options: Mapping[str, str] | None = None,
        needed: Collection[InstalledPart] = (),
        additions: Additions | None = None,
        audit: Audit = NO_AUDIT,
        constants_seed: int = 0,
        awake: Awake | None = None,
    ) -> None:
        """`additions` are what the run adds to the model of the task, `constants_seed` is that of the initial model.

        `awake` stands still while this process is frozen; without it, waits go by the clock of the event loop.
        """
        self._awake = awake or Awake(lambda: asyncio.get_running_loop().time(), float("inf"))
        #: The nodes that are away.
        self.departures = Departures(self._awake.time)
        self._welcome = Welcome(run_id, additions)
        self._recorder = recorder
        self._audit = audit
        self._refusals = Refusals(recorder, audit=audit)
        self._replacing = Replacing(recorder)
        self._issuer = issuer
        #: The key of this user's processes, by which nodes know this top server; empty if they need no such proof.
        self.local_key = b""
        self._nodes: dict[str, Node] = {}
        self._clients: dict[int, tuple[HostedClient, Node]] = {}
        self._named: dict[str, int] = {}  # what people call a client -> its number
        self._told_clients, self._told_names, self.told_samples = ToldClients(), ToldNames(), ToldSamples()
        #: What newcomers are checked against; `admit` fills in what changes.
        self._known = Known(
            task=task,
            task_options=task_options or {},
            relay=relay,
            nodes=self._nodes.keys(),
            clients=0,
            host_of=lambda _: None,
            adds=lambda model, features: added_tensors(self._welcome.additions, model, features),
            needed=needed,
        )
        #: Nodes that left -> the managers that they were told to dial; the latest node is the last.
        self._left: dict[str, dict[str, AttachTo]] = {}
        #: The hello of the first node. If all nodes leave before a node was given work, the next one is the first.
        self._standard: Hello | None = None
        self.constants_seed = constants_seed
        #: Of a resumed run: the digests of its constants by name.
        self.saved_constants: Mapping[str, bytes] | None = None
        self._working = False
        self._changes = Changes(self._awake)
        self._over: Leave | None = None
        #: Number of rejected models per client.
        self.offences: dict[int, int] = {}
        #: Says why a node may not join, by the registry of a federation; None if there is no registry.
        self.registered: Callable[[Hello, Caller], Refusal | None] | None = None
        #: The nodes that the run has started.
        self.placed = callers.Placed(run_id)
        #: Enrolments that are revoked.
        self.revoked: tuple[str, ...] = ()
        #: Client -> the node that has hosted it, if a certificate has proven who that is. No other node gets it.
        self.owners: dict[int, str] = {}
        self._owned: Counter[str] = Counter()  # their number by node
        self._joins: Counter[str] = Counter()  # of this minute, by node
        self._minute = 0

    @property
    def standard(self) -> Hello:
        """What the first node said of the task and its model; without classes and tensors before it joined."""
        return self._standard or _NOBODY

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors of the model of the run, head and additions included; empty before the first node joined."""
        own = self.standard.tensors
        return (*own, *added_tensors(self._welcome.additions, own, self.standard.features)) if own else ()

    @property
    def constants(self) -> Mapping[str, bytes] | None:
        """The digests of the tensors that do not travel, by name; None before the first node joined."""
        if self.saved_constants is not None or self._standard is None:
            return self.saved_constants
        return {one.tensor.name: one.digest for one in self._standard.constants if one.tensor}

    @property
    def scoring(self) -> Scoring:
        """How the task combines its metrics, and what rates a model."""
        return scoring_of(self._standard)

    @property
    def nodes(self) -> int:
        """The number of present nodes."""
        return len(self._nodes)

    @property
    def hellos(self) -> list[Hello]:
        """What the present nodes said when they joined."""
        return [node.hello for node in self._nodes.values()]

    @property
    def clients(self) -> dict[int, HostedClient]:
        """The present clients, by ascending id."""
        return {client: self._clients[client][0] for client in sorted(self._clients)}

    def member(self, client: int) -> Member | None:
        """The client and its node, as managers need it; None if its node left."""
        if client not in self._clients:
            return None
        hosted, node = self._clients[client]
        certificate = node.caller.certificate
        return Member(
            client,
            node.hello.node,
            node.hello.peer_address,
            hosted.train_samples,
            node_clients=len(node.hello.clients),
            node_samples=node.samples,
            certificate_digest=bytes.fromhex(fingerprint(certificate)) if certificate else b"",
        )

    def certificate(self, name: str) -> bytes:
        """The certificate with which a present node joined, in PEM; empty without TLS, or if it has left."""
        found = self._nodes.get(name)
        return found.caller.certificate if found is not None else b""

    def own(self, owners: Mapping[int, str]) -> None:
        """From now on these clients belong to these nodes, unless they have an owner."""
        new = {client: node for client, node in owners.items() if client not in self.owners}
        self.owners |= new
        self._owned.update(new.values())

    def refused(self, hello: Hello, caller: Caller, made: bool = True) -> Failure | None:
        """Why a node is refused, which is recorded; None if it is not. `made`: it has made its constants."""
        found = self._why_not(hello, caller, self._older(hello.node, caller), made)
        if found is None:
            return None
        over = FailureCode.RUN_OVER, FailureCode.RUN_STOPPED
        if found.failure.code not in over:  # dismissed nodes look for the next run
            self._refusals.note(hello.node, found, caller)
        return found.failure

    def would_take(self, hello: Hello, caller: Caller) -> WouldTake | Failure:
        """Whether the caller could join now: `refused` without any record, and without its constants."""
        refused = self._why_not(hello, caller, self._older(hello.node, caller), made=False)
        return refused.failure if refused is not None else compared(hello, self._standard)

    async def admit(self, hello: Hello, caller: Caller) -> Node | Failure:
        """Admits a node; returns the reason if it is refused."""
        older = self._older(hello.node, caller)
        if refused := self.refused(hello, caller):
            return refused
        if older is not None:
            why, told = self._replacing.note(hello.node, older.caller, caller, self.registered is not None)
            older.outbox.put_nowait(Failure(FailureCode.NOT_ALLOWED, told))
            older.outbox.put_nowait(None)
            await self.leave(older, why)
        self._standard = self._standard or hello
        self._joins[hello.node] += 1
        admitted = self._nodes[hello.node] = Node(hello, caller)
        self._clients.update(
            {hosted.client: (hosted, admitted) for hosted in hello.clients if self._bears(hosted.client)}
        )
        self._named.update((hosted.name, hosted.client) for hosted in hello.clients if hosted.name)
        if caller.proven is not None and self.registered is None:
            self.own({hosted.client: hello.node for hosted in hello.clients})
        admitted.outbox.put_nowait(replace(self._welcome, key=self._issuer.key_of(identity.node(hello.node))))
        if self.revoked:
            admitted.outbox.put_nowait(Revoked(self.revoked))
        self._audit.note(
            "admitted",
            node=hello.node,
            caller=who(caller),
            certificate=caller.certificate.decode("ascii", "replace") or None,
            **self._told_clients.fields(hello),
            address=hello.peer_address or None,
            task_digest=hello.task_digest.hex() or None,
        )
        for to in self._left.pop(hello.node, {}).values():
            self.attach(hello.node, to)  # its group may still wait for this node
        away_s = self.departures.joined(hello.node, (hosted.client for hosted in hello.clients))
        self._recorder.record(
            NodeJoined(
                node=hello.node,
                away=ABSENT if away_s is None else round(away_s, 1),
                clients=len(hello.clients),
                names=self._told_names.news(hello) or ABSENT,
                other_data=self.told_samples.changes(hello) or ABSENT,
                address=hello.peer_address or None,
                task_digest=beginning(hello.task_digest) or None,
                differs_from=differs_from(hello, self._standard),
                device=hello.device,
                memory=hello.device_memory,
                torch=hello.torch,
            )
        )
        self._changes.note()
        return admitted

    def note_refusal(self, name: str, why: Failure | Refusal, caller: Caller | None = None) -> None:
        """Records that a caller, or the present one, was refused under this name, unless there were many of late."""
        self._refusals.note(name, why, caller or access.caller())

    def revoke(self, enrolments: Collection[str]) -> None:
        """Tells all nodes which enrolments are revoked: a node that serves models must refuse their holders."""
        self.revoked = tuple(enrolments)
        for found in self._nodes.values():
            found.outbox.put_nowait(Revoked(self.revoked))

    def _older(self, name: str, caller: Caller) -> Node | None:
        """The present node of this name, if the caller is the same (`may_replace`); nobody else replaces it."""
        return found if (found := self._nodes.get(name)) and callers.is_same(name, caller, found.caller) else None

    def _why_not(self, hello: Hello, caller: Caller, older: Node | None, made: bool) -> Refusal | None:
        """Why a node may not join; None if it may. It would take the place of `older`."""
        if (minute := int(time.monotonic() // 60)) != self._minute:
            self._minute = minute
            self._joins.clear()
        known = replace(
            self._known,
            joins=self._joins[hello.node],
            taken_from=callers.taken_from(caller, self._nodes.get(hello.node)),
            nodes=self._nodes.keys() - ({hello.node} if older else ()),
            clients=len(self._clients) - (len(older.hello.clients) if older else 0),
            owned=self._owned[hello.node] + sum(hosted.client not in self.owners for hosted in hello.clients),
            host_of=functools.partial(self._host_of, hello.node, older),
            standard=self._standard,
            constants=self.constants,
            named=self._named.get,
            over=self._over is not None and not self._over.resumable,
            stopped=self._over is not None and self._over.resumable,
        )
        by_registry = self.registered(hello, caller) if self.registered and self._over is None else None
        by_certificate = callers.refusal(hello, caller, self.placed, datetime.now(UTC))
        return by_certificate or by_registry or refusal(hello, known, made)

    async def leave(self, node: Node, reason: str) -> None:
        """A node's stream ended."""
        if self._nodes.get(node.hello.node) is not node:
            return
        del self._nodes[node.hello.node]
        for hosted in node.hello.clients:
            self._clients.pop(hosted.client, None)
            self._named.pop(hosted.name, None)
        if not self._nodes and not self._working:
            self._standard = None
        if node.managers:
            self._left[node.hello.node] = node.managers
            if len(self._left) > MOST_NODES:
                del self._left[next(iter(self._left))]
        if self._over is None and self.departures.counting:
            cause = Cause.FREEZE if self._awake.since_freeze() < AFTER_FREEZE_S else Cause.ALONE
            self.departures.left(node.hello.node, (one.client for one in node.hello.clients), reason, cause)
        # After the end of the run it does not matter which side closed the stream.
        reason = reason if self._over is None else "dismissed"
        with dispensable(self._over is not None):
            self._audit.note("left", node=node.hello.node, reason=reason)
            self._recorder.record(NodeLeft(node=node.hello.node, reason=reason))
        self._changes.note()

    async def wait_for(self, nodes: int, clients: int, timeout_s: float) -> bool:
        """Waits for so many nodes and clients; False if they are not present after the timeout."""
        return await self.until(lambda: len(self._nodes) >= nodes and len(self._clients) >= clients, timeout_s)

    async def wait_for_all(self, clients: Collection[int], timeout_s: float) -> set[int]:
        """Waits for these clients; returns the clients that are missing after the timeout."""

        def missing() -> set[int]:
            return {client for client in clients if client not in self._clients and self._bears(client)}

        await self.until(lambda: not missing(), timeout_s)
        return missing()

    def note_offence(self, client: int) -> None:
        """Counts a rejected model of a client; after several the client is left out of the run."""
        self.offences[client] = self.offences.get(client, 0) + 1
        if not self._bears(client) and self._clients.pop(client, None) is not None:
            self._recorder.record(
                ClientLeftOut(client=client, reason=f"{self.offences[client]} times its model was refused")
            )

    def attach(self, name: str, to: AttachTo) -> None:
        """Tells a node to dial a manager; a node that has dialled it already does nothing."""
        found = self._nodes.get(name)
        if found is not None:
            self._working = True
            if found.dials(to):  # later tickets for it are the same
                self._audit.note("ticket", verb="attach", manager=to.manager, reader=name)
            ticket = self._issuer.ticket(
                identity.manager(to.manager), Ticket(Verb.ATTACH, to.manager, identity.node(name))
            )
            found.outbox.put_nowait(replace(to, ticket=ticket))

    async def dismiss(self, leave: Leave, timeout_s: float) -> None:
        """Tells all nodes that the run is over, and waits until they have gone."""
        self._over = leave
        self._refusals.close()
        for node in self._nodes.values():
            node.outbox.put_nowait(leave)
            node.outbox.put_nowait(None)
        await self.until(lambda: not self._nodes, timeout_s)

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until a condition on nodes and clients holds; False if it does not after the timeout."""
        return await self._changes.until(holds, timeout_s)

    def _host_of(self, asks: str, older: Node | None, client: int) -> str | None:
        """The node that hosts a client, or that owns it; None if the node `asks` may have it.

        The node `asks` would take the place of `older`.
        """
        found = self._clients.get(client)
        if found is not None and found[1] is not older:
            return found[1].hello.node
        owner = self.owners.get(client)
        return None if owner == asks else owner

    @property
    def left_out(self) -> list[int]:
        """The clients that are left out of the rest of the run."""
        return [client for client in self.offences if not self._bears(client)]

    def _bears(self, client: int) -> bool:
        return self.offences.get(client, 0) < MOST_OFFENCES
