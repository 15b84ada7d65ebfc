"""The main coroutine of a node: load the task, join the top server, serve managers, leave when the run is over."""

import asyncio
import contextlib
import dataclasses
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import torch

from fedgsp import wire
from fedgsp.connections.addresses import advertised, is_near, is_wildcard, split_address
from fedgsp.connections.channels import SHUTDOWN_GRACE_S, Channels, describe, start_server
from fedgsp.connections.proxy import Proxy, proxy_of
from fedgsp.errors import ConfigError, PeerError, RunError, UserError
from fedgsp.identity import TOP_SERVER, node
from fedgsp.limits.answers import Unreadable, stream
from fedgsp.messages import (
    AttachTo,
    Failure,
    FailureCode,
    Hello,
    Leave,
    MakeConstants,
    NodeMessage,
    Revoked,
    TopServerMessage,
    Welcome,
)
from fedgsp.processes.lifecycle import STOP_GRACE_S, beside
from fedgsp.run_ids import is_local, is_run
from fedgsp.security import access, local_key
from fedgsp.security.access import shown
from fedgsp.security.cleartext import leaves_machine
from fedgsp.security.proofs import UnprovenError, prove
from fedgsp.security.revocation import REASON, Revocations
from fedgsp.security.signing import Signer
from fedgsp.security.tickets import Door, Verb
from fedgsp.security.tls import Tls
from fedgsp.security.tls_probe import NoServerError
from fedgsp.seldom import SeldomLog
from fedgsp.settings.run import NodeSettings
from fedgsp.to_the_end import to_the_end
from fedgsp.transfers import pipes
from fedgsp.transfers.bases import Bases
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import membership_pb2
from fedgsp.within import within
from fedgsp.words import counted
from fedgsp_node import devices
from fedgsp_node.clients import Clients
from fedgsp_node.connections.attachment import OrderLog
from fedgsp_node.connections.credentials import certified_name, credentials, name_of
from fedgsp_node.connections.dialling import Dialling
from fedgsp_node.connections.hello import hello_of
from fedgsp_node.connections.hosting import HostedManagers
from fedgsp_node.connections.managers import Managers
from fedgsp_node.fetching import Fetcher
from fedgsp_node.kept.personal_state import PersonalState
from fedgsp_node.model import spare_pages
from fedgsp_node.own_task import own_task
from fedgsp_node.policies.guard import Guard
from fedgsp_node.policies.policy import check_start, refused_run
from fedgsp_node.policies.policy_file import policy_of
from fedgsp_node.receipts import Receipts, receipt_log
from fedgsp_node.slot import STOP_TIMEOUT_S, Slot
from fedgsp_node.tasks import source_digest
from fedgsp_node.worker import Worker

logger = logging.getLogger(__name__)

FIRST_RETRY_S = 0.2
LONGEST_RETRY_S = 5.0
#: How long a node that ends waits for its orders. Without this limit, a disk that hangs would keep it for ever.
GOODBYE_S = STOP_GRACE_S + STOP_TIMEOUT_S
#: Refusals that may pass for a node of the run. After a broken connection, the top server may still hold the old
#: stream until its keepalive ends. A top server that is stopping takes no nodes, and may be resumed. An expired
#: certificate may be replaced.
_PASSING = (
    FailureCode.NAME_TAKEN,
    FailureCode.CLIENT_TAKEN,
    FailureCode.TOO_MANY,
    FailureCode.RUN_OVER,
    FailureCode.RUN_STOPPED,
    FailureCode.CERTIFICATE_EXPIRED,
)


def patience_s(settings: NodeSettings, has_joined: bool, is_stopped: bool) -> float:
    """For how long a node looks for a top server, in seconds.

    `has_joined`: it has joined a run. `is_stopped`: the top server of that run has stopped it.
    """
    return settings.return_timeout if has_joined and not is_stopped else settings.connect_timeout


async def run(settings: NodeSettings) -> None:
    """Runs until the run is over; raises UserError if the node cannot take part, or if the run does not finish."""
    name_of(settings)  # a wrong name is told before anything is loaded
    tls = credentials(settings)
    if tls is None and leaves_machine(settings.top_server):
        logger.warning(
            "the connections to %s have no TLS (--insecure): everybody on the way can read and change models",
            settings.top_server,
        )
    name = certified_name(tls)
    policy, proxy = policy_of(settings.policy, settings.allow), proxy_of(settings.proxy, settings.proxy_password)
    torch.set_num_threads(settings.threads)
    device = devices.device_of(settings.device)
    devices.prepare(device)
    pipes.choose(settings.hand_over)
    host, _ = split_address(settings.top_server)
    store, slot, door, revoked = ModelStore(), Slot(policy.most_seconds), Door(), Revocations()
    bases = Bases(settings.wire)
    try:
        # All code of the task runs in the slot, so that the event loop can still react to signals.
        personal = PersonalState(settings.state_dir)
        clients = await slot.run(lambda _: Clients(own_task(settings, device), settings.client_ids, personal, device))
        check_start(policy, settings.top_server, source_digest(clients.task))
        await slot.run(lambda _: clients.rehearse())
        logger.info(
            "task %s is ready with %s and %s; dialling the top server at %s",
            settings.task,
            counted(len(clients.hosted), "client"),
            counted(sum(hosted.train_samples for hosted in clients.hosted), "training sample"),
            settings.top_server,
        )
        async with (
            Channels(tls, settings.lost_after, settings.insecure, proxy) as channels,
            peer_server(settings, store, tls, door, revoked, bases) as peer_address,
            _certificate_renewed(settings, name, proxy),
            beside(spare_pages.keep(), "spare pages"),
        ):
            dialling = Dialling(policy, settings.top_server, proxied=proxy is not None)
            if settings.peer_listen and not policy.hosts and not is_near(host):
                logger.warning("this node dials no other node: list their hosts with --allow hosts=HOST,HOST")
            guard = Guard(clients.hosted, store, policy, dialling, drop_last=clients.task.drop_last)
            joined = asyncio.Event()
            fetcher = Fetcher(store, channels, clients.tensors, host, dialling.why_not, bases, joined)
            worker = Worker(clients, store, fetcher, slot, guard)
            with receipt_log(settings.state_dir) as log:

                def receipts(shown: Tls | None) -> Receipts:
                    """Those of one connection to a manager, signed with the key of the certificate shown there."""
                    return Receipts(Signer(shown.key, shown.cert) if shown else None, log)

                of_run = (settings, clients, channels, store, worker, peer_address, door)
                await _Node(*of_run, name, revoked, receipts, joined).live()
    finally:
        slot.close()


def _certificate_renewed(
    settings: NodeSettings, name: str, proxy: Proxy | None
) -> contextlib.AbstractAsyncContextManager[None]:
    """Keeps the certificate of --identity fresh while the body runs, if there is one."""
    if settings.identity is None:
        return contextlib.nullcontext()
    from fedgsp_node.enrolment.renewal import renewed

    return renewed(settings.identity, name, settings.top_server, proxy)


@contextlib.asynccontextmanager
async def peer_server(
    settings: NodeSettings,
    store: ModelStore,
    tls: Tls | None,
    door: Door,
    revoked: Revocations,
    bases: Bases | None = None,
) -> AsyncIterator[str]:
    """Serves the models of this node to other nodes, if it listens; yields the address for them, empty if none."""
    if not settings.peer_listen:
        yield ""
        return
    if not settings.advertise and is_wildcard(split_address(settings.peer_listen)[0]):
        raise ConfigError(
            f"--peer-listen {settings.peer_listen} has no address that peers could dial", "give --advertise"
        )
    guard = access.AccessControl({Verb.FETCH: door}, tls is not None, revoked)
    models = ModelServicer(store, bases=bases)
    server, bound = await start_server(
        settings.peer_listen, [models.add_to], guard, tls, settings.lost_after, settings.insecure
    )
    try:
        yield advertised(settings.advertise, bound)
    finally:
        await server.stop(SHUTDOWN_GRACE_S)


class _Node:
    def __init__(
        self,
        settings: NodeSettings,
        clients: Clients,
        channels: Channels,
        store: ModelStore,
        worker: Worker,
        peer_address: str,
        door: Door,
        name: str = "",
        revoked: Revocations | None = None,
        receipts: Callable[[Tls | None], Receipts] = lambda _: Receipts(),
        joined: asyncio.Event | None = None,
    ) -> None:
        """`name` is that of its certificate, if it has one. `revoked` is told whose calls are refused.

        `joined` is set while the node has a connection with its top server.
        """
        self._revoked = revoked or Revocations()
        self._guard = worker.guard
        self._settings = settings
        self._door = door
        self._channels = channels
        self._store = store
        self._worker = worker
        self._top_host, _ = split_address(settings.top_server)
        self._name = name_of(settings, name)
        self._hello = hello_of(settings, clients, self._name, peer_address)
        self._log = OrderLog()
        self._joins = SeldomLog(logger, logging.INFO, "time")
        self._run_id = ""
        self._process = secrets.token_hex(16)
        insecure = settings.insecure if settings.tls_files is None else None
        of_node = (self._name, self._process, self._top_host, insecure)
        self._joined = joined or asyncio.Event()
        self._hosted = HostedManagers(settings, self._name, channels, self._question)
        self._managers = Managers(*of_node, channels, worker, door, self._log, receipts, self._joined)

    async def live(self) -> None:
        """Joins the top server, again after each loss of the connection, until the run is over."""
        loop = asyncio.get_running_loop()
        retry_s, alone_since = FIRST_RETRY_S, loop.time()
        stopped: Leave | None = None
        told = ""
        try:
            while True:
                leave: Leave | None = None
                match await self._join():
                    case Leave(finished=True):
                        logger.info(
                            "node=%s left run %s: it is finished; trained %s",
                            self._name,
                            self._run_id,
                            counted(self._log.trainings, "time"),
                        )
                        return
                    case Leave(resumable=True) as leave:
                        joined, reason = True, f"{leave.reason}; the run may be resumed"
                    case Leave() as leave:
                        raise RunError(f"the run ended: {leave.reason}")
                    case joined, reason:
                        pass
                if joined:
                    retry_s, alone_since, stopped = FIRST_RETRY_S, loop.time(), leave
                most_s = patience_s(self._settings, self._run_id != "", stopped is not None)
                if loop.time() - alone_since > most_s:
                    raise self._alone(stopped, reason, most_s)
                why = "as before" if reason == told else reason
                logger.warning("no top server at %s (%s); next try in %.1f s", self._settings.top_server, why, retry_s)
                told = reason
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)
        finally:
            self._guard.sum_up()
            await to_the_end(self._managers.detach(GOODBYE_S))
            await self._hosted.close()

    def _alone(self, stopped: Leave | None, reason: str, seconds: float) -> UserError:
        waited = f"for {seconds:.0f} s"
        if stopped is not None:
            return RunError(f"the run ended: {stopped.reason}; nobody resumed it {waited}")
        return PeerError(
            f"no top server at {self._settings.top_server} {waited} ({reason})", "start it, or correct --top-server"
        )

    async def _join(self) -> Leave | tuple[bool, str]:
        """One connection to the top server: its Leave message, or whether the node had joined, and why it was lost."""
        await self._channels.drop(
            self._settings.top_server
        )  # a fresh channel tries at once, without gRPC's own backoff
        await self._guard.dialling.look_up()
        try:
            channel = await self._channels.to(self._settings.top_server, TOP_SERVER)
        except NoServerError as error:
            return False, error.what  # the message around it says what to do
        except PeerError as error:
            return False, str(error)
        join = stream(channel, "/fedgsp.v1.MembershipService/Join", membership_pb2.TopServerMessage)
        ended = asyncio.Event()
        try:
            question = self._question()
        except PeerError as error:
            return False, f"{error.what}; {error.remedy}"
        ticket = question.ticket(Verb.JOIN, node(self._name)) if question is not None else b""
        said: asyncio.Queue[Hello] = asyncio.Queue()
        said.put_nowait(self._hello)
        call = join(self._outgoing(said, ended), metadata=shown(ticket, self._process))
        messages, joined = aiter(call), False
        try:
            if question is not None and (stranger := await self._stranger(question, call, messages)):
                return False, stranger
            while True:
                # After the welcome, silence is normal; only the end of the stream matters.
                async with asyncio.timeout(None if joined else self._settings.connect_timeout):
                    proto = await anext(messages, None)
                if proto is None:
                    return joined, "it closed the stream"
                if isinstance(proto, Unreadable):
                    return joined, f"what it said {proto.why}"
                said_now = wire.decode(TopServerMessage, proto).kind
                if not joined and not isinstance(said_now, Welcome | MakeConstants | Failure):
                    raise PeerError(
                        "the top server asked for something before it admitted this node",
                        "install the same version of fedgsp on both machines",
                    )
                match said_now:
                    case Welcome(run_id) as welcome:
                        if not is_run(run_id) or is_local(run_id):
                            raise PeerError(f"the id of the run is {run_id[:60]!r}", "correct the top server")
                        if refused := refused_run(run_id, welcome.additions, self._guard.policy):
                            raise PeerError(f"this node does not join: {refused}")
                        joined = True
                        self._joined.set()
                        self._door.change(welcome.key)
                        if run_id != self._run_id:  # its managers may have the same names as those of the last run
                            await self._managers.detach()
                            self._store.clear()
                            await self._worker.extend(welcome.additions)
                            self._worker.open(run_id)
                        self._run_id = run_id
                        await self._hosted.serve(run_id)
                        clients = counted(len(self._hello.clients), "client")
                        self._joins.line(f"node={self._name} joined run {run_id} with {clients}")
                    case MakeConstants(seed) if not joined:
                        made = await self._worker.make_constants(seed)
                        said.put_nowait(dataclasses.replace(self._hello, constants=made))
                    case AttachTo() as manager:
                        self._managers.attach(self._run_id, manager)
                    case Failure(code, detail):
                        why = detail or f"it gave no reason ({code.name.lower()})"
                        if code is FailureCode.RUN_STOPPED or (self._run_id and code in _PASSING):
                            return False, why
                        raise PeerError(f"the top server refused this node: {why}")
                    case Revoked(enrolments):
                        self._revoked.replace(enrolments)
                    case Leave() as leave:
                        return leave
        except TimeoutError:
            return joined, "it takes connections but says nothing"
        except grpc.aio.AioRpcError as error:
            revoked = error.code() is grpc.StatusCode.PERMISSION_DENIED and error.details() == REASON
            if revoked and question is None:  # where a key is shown, nobody has a certificate
                raise PeerError(f"the top server refused this node: {REASON}") from None
            return joined, describe(error)
        finally:
            self._joined.clear()
            ended.set()
            call.cancel()

    async def _stranger(self, question: local_key.Question, call: Any, messages: AsyncIterator[Any]) -> str:
        """Why the process at the address is not the top server of this user; empty if it is.

        Raises PeerError if this node has never joined a run: then a wrong user or port is likelier than a stranger.
        Raises AioRpcError if the call was refused.
        """
        try:
            await within(self._settings.connect_timeout, prove(call, messages, question.is_answer))
        except UnprovenError:
            if self._run_id:
                return question.stranger.what
            raise question.stranger from None
        return ""

    def _question(self) -> local_key.Question | None:
        """What a new call asks the top server; None with TLS or --insecure. PeerError if no server has a key there."""
        if not self._shows_key:
            return None
        return local_key.Question(self._settings.top_server, local_key.needed(self._settings.top_server))

    @property
    def _shows_key(self) -> bool:
        """Whether this process must show that it is one of the same user: it has no TLS."""
        return self._settings.tls_files is None and not self._settings.insecure

    async def _outgoing(
        self, said: asyncio.Queue[Hello], ended: asyncio.Event
    ) -> AsyncIterator[membership_pb2.NodeMessage]:
        for _ in range(2 if self._hello.constants else 1):
            yield wire.encode(NodeMessage(await said.get()))
        await ended.wait()  # the stream stays open for the whole stay
