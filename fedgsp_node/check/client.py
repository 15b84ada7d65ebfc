"""Asks the network and the top server: what answers, with which certificate, how fast; could this node join?"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import grpc.aio

from fedgsp import wire
from fedgsp.connections.addresses import loopback, resolve, split_address
from fedgsp.connections.channels import MAX_REASON, Channels, describe
from fedgsp.connections.proxy import Proxy
from fedgsp.connections.unreached import why_unreached
from fedgsp.errors import ConfigError, PeerError, UserError
from fedgsp.identity import TOP_SERVER, manager, node
from fedgsp.limits.answers import Unreadable, stream
from fedgsp.messages import (
    MOST_ECHO_BYTES,
    PROTOCOL,
    About,
    AskAbout,
    CheckAnswer,
    CheckQuestion,
    Echo,
    Failure,
    Hello,
    WouldTake,
)
from fedgsp.security import local_key
from fedgsp.security.access import shown
from fedgsp.security.tickets import Verb
from fedgsp.security.tls import Tls
from fedgsp.security.tls_probe import hung_up, probe
from fedgsp.security.tls_probe import shown as shown_by
from fedgsp.v1 import check_pb2
from fedgsp_node.check.connection import MOST_TOLD
from fedgsp_node.check.facts import Answered, Fact, Facts, Pace, Reached, Shown, Unchecked
from fedgsp_node.connections.dialling import Dialling

T = TypeVar("T")

#: Deadlines in seconds: of a TCP connection, of a TLS handshake, of an answer, of measuring the rate. All of them, one
#: after the other, take less than the ten seconds of a check.
CONNECT_S, HANDSHAKE_S, ANSWER_S, PACE_S = 2.5, 1.5, 2.0, 1.5
#: Deadline of measuring the rate and, at the same time, dialling the port of a manager.
MEASURE_S = CONNECT_S + HANDSHAKE_S
#: Empty messages of which the fastest counts as the round trip; then as many full ones as take about this long.
PINGS, SENDING_S, MOST_SENT = 5, 0.5, 16
_PATH = "/fedgsp.v1.CheckService/Check"
_OPEN = "start the top server, and let TCP to this port through on every firewall on the way"
_WHERE = "give --top-server the host and port where nodes join: the top server logs `listening on ...`"


async def within(seconds: float, work: Awaitable[T], late: PeerError) -> T | UserError:
    """The result of work, or the error that it raises; `late`, if it takes longer."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        return late
    except UserError as error:
        return error
    except grpc.aio.AioRpcError as error:
        return _refused(error)


def _refused(error: grpc.aio.AioRpcError) -> PeerError:
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return PeerError(
            "the process there does not know this call: it is a group manager, another program, or a top server with"
            " an older version of fedgsp",
            f"install the same version on both machines; or {_WHERE}",
        )
    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
        return PeerError(
            f"the top server refuses this node: {(error.details() or '')[:MAX_REASON]}",
            "ask its owner: its log has the reason (a revoked certificate, or one of another role)",
        )
    return PeerError(describe(error), _WHERE)


async def reach(address: str, remedy: str, proxy: Proxy | None = None) -> Reached | PeerError:
    """Opens a TCP connection, and closes it; or says in plain words, with this remedy, why there is none.

    Of a connection by way of a proxy, the address at its other end is not known.
    """
    host, port = split_address(address)
    begin = time.monotonic()
    if proxy is not None:
        try:
            await proxy.check(address, CONNECT_S)
        except PeerError as error:
            return error
        return Reached(address, time.monotonic() - begin)
    try:
        async with asyncio.timeout(CONNECT_S):
            where = loopback(host).strip("[]")
            _, writer = await asyncio.open_connection(where, port, happy_eyeballs_delay=0.25)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a possible name
        said = f"{type(error).__name__}: {error}"
        return PeerError(why_unreached(said, address) or said, remedy)
    seconds = time.monotonic() - begin
    ip, port = writer.get_extra_info("peername")[:2]
    await hung_up(writer)
    return Reached(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}", seconds)


async def certificate_of(address: str, tls: Tls | UserError, proxy: Proxy | None = None) -> Shown:
    """The certificate of the server at an address, and why this node refuses it; raises PeerError if it shows none."""
    from cryptography import x509

    from fedgsp_node.check.certificates import read

    try:
        seen = read(x509.load_der_x509_certificate(await shown_by(address, HANDSHAKE_S, proxy)))
    except (OSError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        reason = why_unreached(said, address) or said
        raise PeerError(
            f"no TLS handshake with {address}: {reason}", f"start the top server with TLS; or {_WHERE}"
        ) from None
    if isinstance(tls, UserError):
        return Shown(seen)
    try:
        await probe(address, tls, HANDSHAKE_S, proxy)
    except (OSError, PeerError) as error:
        return Shown(seen, error if isinstance(error, PeerError) else PeerError(str(error), "try again"))
    return Shown(seen)


class TopServer:
    """The top server, as a check asks it: it answers, but the node does not join."""

    def __init__(self, address: str, channels: Channels, name: str, needs_key: bool) -> None:
        """`name` is that of the node. `needs_key`: it has to be a server of this user, on plain loopback."""
        self._address = address
        self._channels = channels
        self._name = name
        self._needs_key = needs_key

    @contextlib.asynccontextmanager
    async def call(self) -> AsyncIterator[Call]:
        """One call; raises PeerError if there is no server, or none of this user."""
        channel = await self._channels.to(self._address, TOP_SERVER)
        question, ticket = None, b""
        if self._needs_key:
            question = local_key.Question(self._address, local_key.needed(self._address))
            ticket = question.ticket(Verb.CHECK, node(self._name))
        call = stream(channel, _PATH, check_pb2.CheckAnswer)(metadata=shown(ticket))
        try:
            yield Call(call, question)
        finally:
            call.cancel()

    async def judge(self, hello: Hello) -> WouldTake:
        """Asks whether this node could join; raises PeerError with the reason of the top server if it could not."""
        async with self.call() as call:
            said = await call.ask(hello)
        if isinstance(said, Failure):
            raise PeerError(
                f"the top server would refuse this node: {said.detail[:MAX_REASON] or said.code.name.lower()}"
            )
        if not isinstance(said, WouldTake):
            raise _unknown(said)
        return said


class Call:
    """One open call of the check."""

    def __init__(self, call: Any, question: local_key.Question | None) -> None:
        """`question`: what the top server has to answer with a proof."""
        self._call = call
        self._question = question

    async def ask(self, question: AskAbout | Echo | Hello) -> object:
        """The answer to a question; raises AioRpcError, and PeerError for what cannot be read."""
        with contextlib.suppress(asyncio.InvalidStateError):  # it has ended; the next line says why
            await self._call.write(wire.encode(CheckQuestion(question)))
        answer = await self._call.read()
        if answer is grpc.aio.EOF:
            raise PeerError("the top server ended the check", "try again")
        if isinstance(answer, Unreadable):
            raise PeerError(f"what the top server said {answer.why}", "install the same version of fedgsp")
        return wire.decode(CheckAnswer, answer).kind

    async def about(self) -> Answered:
        """What the top server says of itself, after it has proven that it is one of this user, if it has to."""
        asked = time.time()
        said = await self.ask(AskAbout(PROTOCOL))
        heard = time.time()
        if not isinstance(said, About):
            raise _unknown(said)
        if self._question is not None:
            self._question.check(said.proof)
        return Answered(said, asked, heard)

    async def pace(self) -> Pace:
        """Measures the round trip, then the rate."""
        loop = asyncio.get_running_loop()
        trips = []
        for _ in range(PINGS):
            begin = loop.time()
            await self.ask(Echo(b""))
            trips.append(loop.time() - begin)
        trip, payload = min(trips), secrets.token_bytes(MOST_ECHO_BYTES)
        begin, sent = loop.time(), 0
        try:
            async with asyncio.timeout(PACE_S - sum(trips)):
                while sent < MOST_SENT and loop.time() - begin < SENDING_S:
                    await self.ask(Echo(payload))
                    sent += 1
        except TimeoutError:
            pass
        moving = loop.time() - begin - sent * trip
        moved = 2 * max(sent, 1) * len(payload)
        return Pace(trip, moved / max(moving, 1e-6), at_most=not sent)


def _unknown(said: object) -> PeerError:
    return PeerError(
        f"the top server answers {type(said).__name__} in place of what was asked",
        "install the same version of fedgsp on both machines",
    )


async def look(
    facts: Facts,
    top: TopServer,
    dialling: Dialling,
    channels: Channels,
    tls: Tls | UserError | None,
    proxy: Proxy | None = None,
) -> None:
    """Fills in what the network tells. Each step has a deadline; the steps after one that failed are left out."""
    address = facts.address
    if proxy is not None:
        found = await reach(address, "", proxy)
        facts.proxy = Reached(proxy.address, found.seconds) if isinstance(found, Reached) else found
        facts.reached = found if isinstance(found, Reached) else Unchecked("see proxy")
    else:
        facts.reached = await reach(address, f"{_OPEN}; {_WHERE}")
    if not isinstance(facts.reached, Reached):
        return
    if tls is not None:
        facts.shown = await within(2 * HANDSHAKE_S, certificate_of(address, tls, proxy), _silent(address))
        if isinstance(tls, UserError) or not isinstance(facts.shown, Shown) or facts.shown.refused is not None:
            facts.answered = Unchecked("there is no TLS connection: see the certificates")
            return
    facts.answered = _silent(address)
    asked = _asked(facts, top, dialling, channels, proxy)
    failed = await within(ANSWER_S + MEASURE_S + 1, asked, _silent(address))
    if failed is not None and not isinstance(facts.answered, Answered):
        facts.answered = failed


async def _asked(facts: Facts, top: TopServer, dialling: Dialling, channels: Channels, proxy: Proxy | None) -> None:
    """Fills in the answer of the top server, and what is measured while the call is open."""
    async with top.call() as call:
        facts.answered = await within(ANSWER_S, call.about(), _silent(facts.address))
        if not isinstance(facts.answered, Answered):
            return
        facts.pace = facts.manager = Unchecked("the time of the check was over")
        about = facts.answered.about

        async def measure() -> None:
            slow = PeerError("the connection does not carry some bytes back and forth in time", "try again")
            facts.pace = await within(2 * PACE_S, call.pace(), slow)

        async def dial() -> None:
            facts.manager = await _manager(facts, about, dialling, channels, proxy)

        await asyncio.gather(measure(), dial())


async def _manager(
    facts: Facts, about: About, dialling: Dialling, channels: Channels, proxy: Proxy | None
) -> Fact[Reached]:
    """A connection to where managers listen, as a node makes one before it attaches."""
    said, ports = about.manager_address, about.manager_ports
    if not said:
        return Unchecked("no port of --manager-ports is free at the top server: check again before the run starts")
    opened = f"ports {ports[:MOST_TOLD]}" if ports else "all ports (the top server has no --manager-ports)"
    remedy = f"let {opened} of the machine of the top server through, on every firewall on the way"
    try:
        address = resolve(said, split_address(facts.address)[0])
        await dialling.look_up()
        if forbidden := dialling.why_not(said):
            return ConfigError(f"this node may not dial its group managers: {forbidden}")
    except ConfigError as error:
        return error
    reached = await reach(address, remedy, proxy)
    if not isinstance(reached, Reached):
        return reached
    ready = await within(HANDSHAKE_S, _ready(address, channels), _silent(address, remedy))
    return ready if isinstance(ready, UserError) else reached


async def _ready(address: str, channels: Channels) -> None:
    """Waits until a channel of gRPC is connected, which needs an answer of a gRPC server at the other end."""
    channel = await channels.to(address, manager("of the check"))
    await channel.channel_ready()


def _silent(address: str, remedy: str = _WHERE) -> PeerError:
    what = f"{address} takes connections but says nothing: another program, or something on the way holds them up"
    return PeerError(what, remedy)
