"""gRPC servers and channels with the project's settings."""

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, Self, TypeVar
from weakref import WeakValueDictionary

import grpc.aio

from fedgsp.connections.addresses import ip_of, is_near, loopback, resolve, split_address, target
from fedgsp.connections.liveness import (
    LOST_AFTER_S,
    MODEL_WINDOW_BYTES,
    MOST_DIAL_S,
    ORDER_WINDOW_BYTES,
    SERVER_WINDOW_BYTES,
    keepalive,
    window,
)
from fedgsp.connections.proxy import Proxy
from fedgsp.connections.unreached import why_unreached
from fedgsp.errors import ConfigError
from fedgsp.identity import Identity
from fedgsp.limits import descriptors
from fedgsp.limits.gate import Gate, end
from fedgsp.security.access import AccessControl, Interceptor
from fedgsp.security.cleartext import check_cleartext, leaves_machine
from fedgsp.security.tls import Tls, handshake_failure
from fedgsp.security.tls_followed import Followed
from fedgsp.security.tls_probe import trusted
from fedgsp.transfers.pacing import Way, Ways
from fedgsp.visible import visible
from fedgsp.within import within

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Messages stay small because weights travel in chunks; a larger one is refused by gRPC itself.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
SHUTDOWN_GRACE_S = 2.0
#: Longest wait for the first message of a caller, in seconds.
HELLO_TIMEOUT_S = 10.0
#: A refused caller is heard for so many seconds, or until it pauses for so many.
HEAR_OUT_S, PAUSE_S = 10.0, 0.2
#: So long, in seconds, a channel may have no connection because nobody has called yet. Idle connections last longer.
FRESH_S = 30.0
#: A connection for models to another machine may be silent for so many times `lost_after_s`: on a slow link, a lost
#: packet holds up all that follow. The connection for orders notices that a server is gone.
PATIENCE = 4
#: Largest length of a refusal, which may quote the caller: gRPC drops answers with a status of more than 8 KiB.
MAX_REASON = 500

#: No packed message is unpacked: gRPC would make gigabytes of kilobytes before it compares the length with the limit.
_AS_IT_COMES = ("grpc.per_message_decompression", 0)
_CHANNEL_OPTIONS = [
    _AS_IT_COMES,
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.use_local_subchannel_pool", 1),  # a closed channel closes its connection
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
]
#: Unless a process has a proxy, peers are dialled directly, whatever the environment says.
_NO_PROXY = [("grpc.enable_http_proxy", 0)]
_SERVER_OPTIONS = [
    _AS_IT_COMES,
    ("grpc.so_reuseport", 0),  # otherwise two servers could bind the same port without an error
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 300),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A caller that never speaks keeps a connection only for a while.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_concurrent_streams", 12_000),  # of one connection: a node may wait for the models of many hops
]


async def start_server(
    listen: str,
    register: Iterable[Callable[[grpc.aio.Server], None]],
    access: AccessControl,
    tls: Tls | None = None,
    lost_after_s: float = LOST_AFTER_S,
    insecure: bool = False,
) -> tuple[grpc.aio.Server, str]:
    """Start a server; returns it and the address that it bound. `access` decides who may call it.

    With `tls`, only clients with a certificate of the same CA are accepted; the server shows the certificate that the
    files of `tls` have at the time. A client that is silent for `lost_after_s`
    seconds is disconnected. Raises ConfigError if the port is in use, or the host is not on this machine, or without
    TLS and `insecure` if other machines could connect.
    """
    host, port = split_address(listen)
    if tls is None and leaves_machine(listen):
        check_cleartext("the address", listen, insecure)
        logger.warning(
            "connections at %s have no TLS (--insecure): everybody who reaches it can read and change models", listen
        )
    settings = [*_SERVER_OPTIONS, *keepalive(lost_after_s), *([] if is_near(host) else window(SERVER_WINDOW_BYTES))]
    settings.append(("grpc.max_allowed_incoming_connections", descriptors.for_connections()))
    followed = Followed(tls) if tls else None
    guard = Interceptor(access, lambda: followed.now().ca if followed else b"")
    server = grpc.aio.server(options=settings, interceptors=[guard, Gate()])
    for add in register:
        add(server)
    bound = 0
    for found in await _addresses_of(host):
        if at := _bind(server, f"{found}:{bound or port}", followed):
            bound = at  # port 0: the other addresses get the same port
        elif _is_here(found):
            bound = 0
            break
    if not bound:
        remedy = "the port is in use or the host is not this machine's: choose another"
        if tls:
            remedy += "; or gRPC does not take the key of --tls-cert: RSA, P-256 and P-384 do"
        raise ConfigError(f"cannot listen on {listen}", remedy)
    await server.start()
    return server, f"{host}:{bound}"


async def _addresses_of(host: str) -> list[str]:
    """All addresses of a host to listen at. gRPC alone would listen at only one of them."""
    if host == "*":
        return ["[::]"]
    if host == "localhost":  # the addresses that gRPC dials, whatever the resolver says
        return ["127.0.0.1", "[::1]"]
    if ip_of(host):
        return [host]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # UnicodeError: not a possible name
        return []
    addresses = dict.fromkeys(str(where[0]) for *_, where in found)
    return [f"[{address}]" if ":" in address else address for address in addresses]


def _bind(server: grpc.aio.Server, where: str, tls: Followed | None) -> int:
    """The port that the server bound; 0 if it could not."""
    try:
        return int(server.add_secure_port(where, _server_credentials(tls)) if tls else server.add_insecure_port(where))
    except RuntimeError:
        return 0


def _server_credentials(followed: Followed) -> grpc.ServerCredentials:
    """Credentials that follow the files of `followed`."""
    shown = first = followed.now()

    def changed() -> Any:
        """What gRPC asks before each handshake; None stands for what it has already."""
        nonlocal shown
        before, shown = shown, followed.now()
        return None if shown is before else _configuration(shown)

    return grpc.dynamic_ssl_server_credentials(_configuration(first), changed, require_client_authentication=True)


def _configuration(tls: Tls) -> Any:
    return grpc.ssl_server_certificate_configuration([(tls.key, tls.cert)], tls.ca)


def _is_here(host: str) -> bool:
    """Whether this machine has the address, so that a failure must be about the port."""
    address = host.strip("[]")
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:  # also if the machine has no IPv6
        return False
    return True


@dataclass(frozen=True, slots=True)
class Line:
    """How models are sent to a server: `dial` returns their channel or raises UserError; `way` describes the link."""

    dial: Callable[[], Awaitable[grpc.aio.Channel]]
    way: Way

    @classmethod
    def of(cls, channel: grpc.aio.Channel) -> Self:
        """A line over a channel that is open."""

        async def opened() -> grpc.aio.Channel:
            return channel

        return cls(opened, Way())


#: An address, and whether the channel carries models.
_Key = tuple[str, bool]


class Channels(contextlib.AbstractAsyncContextManager["Channels"]):
    """The channels to servers; all are closed together. With `tls`, a server must prove its host and its identity.

    Without, a server must be on this machine, unless `insecure` allows others. A server that is silent for
    `lost_after_s` seconds is treated as lost. There is one channel per address on this machine, and there are two per
    address on another: one for models, and one for all other calls, which then never wait behind the bytes of a model.
    """

    def __init__(
        self,
        tls: Tls | None = None,
        lost_after_s: float = LOST_AFTER_S,
        insecure: bool = False,
        proxy: Proxy | None = None,
        every_host: str = "",
    ) -> None:
        """With `proxy`, all connections go through it. The host of an address such as 0.0.0.0:7000 is `every_host`."""
        self._every_host = every_host
        self._tls = Followed(tls) if tls else None
        self._insecure = insecure
        self._proxy = proxy
        self._open: dict[_Key, grpc.aio.Channel] = {}
        #: Loop time at which a channel was made, and the certificate that it shows.
        self._made: dict[_Key, float] = {}
        self._shown: dict[_Key, Tls] = {}
        self._dialling: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()
        self._ways = Ways()  # by host: managers of one machine have ports of their own
        self.lost_after_s = lost_after_s
        # This setting also limits the time of a dial, which is 20 s by default.
        self._dials = [("grpc.min_reconnect_backoff_ms", round(1000 * min(lost_after_s, MOST_DIAL_S)))]

    @property
    def ca(self) -> bytes:
        """The CA (PEM) of this process as it is now; empty without TLS."""
        return self._tls.now().ca if self._tls is not None else b""

    async def to(self, address: str, server: Identity, models: bool = False) -> grpc.aio.Channel:
        """The channel to the process `server` at an address. It connects by itself, and again after a loss.

        `models` asks for the channel that carries models. With TLS, the certificate of the server is checked before.
        Without a connection it is checked again, because either side may have a new one by then. Raises ConfigError if
        the connection would leave this machine without TLS. Raises PeerError if the certificate is not that of
        `server`, if that of this process has expired, if no server is there, or if the proxy opens no connection.
        """
        if self._every_host:
            address = resolve(address, self._every_host)
        key = address, models and not is_near(address.rpartition(":")[0])
        async with self._dialling.setdefault(key, asyncio.Lock()):
            if self._tls is not None and self._has_ended(key):
                await self._drop(key)
            if key not in self._open:
                self._open[key] = await self._dial(key, server)
                self._made[key] = asyncio.get_running_loop().time()
            return self._open[key]

    def _has_ended(self, key: _Key) -> bool:
        """Whether a channel has lost its connection. A channel that is new has none yet: its user is about to call."""
        if key not in self._open:
            return False
        state, age_s = self._open[key].get_state(), asyncio.get_running_loop().time() - self._made[key]
        idle = state is grpc.ChannelConnectivity.IDLE and age_s > FRESH_S
        return idle or state is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def _dial(self, key: _Key, server: Identity) -> grpc.aio.Channel:
        address, models = key
        host, _, port = address.rpartition(":")
        reached = f"{loopback(host)}:{port}"
        where = target(reached)
        options = [*_CHANNEL_OPTIONS, *keepalive(self.lost_after_s * (PATIENCE if models else 1)), *self._dials]
        options += self._proxy.options if self._proxy else _NO_PROXY
        if not is_near(host):
            options += window(MODEL_WINDOW_BYTES if models else ORDER_WINDOW_BYTES)
        if self._tls is None:
            check_cleartext("a peer at", reached, self._insecure)
            if self._proxy is not None:
                await self._proxy.check(reached, MOST_DIAL_S)  # its refusals in plain words, which gRPC does not have
            return grpc.aio.insecure_channel(where, options=options)
        tls = self._shown[key] = self._tls.now()
        tls.check_not_expired()
        credentials, more = await trusted(reached, tls, server, self._proxy)
        return grpc.aio.secure_channel(where, credentials, options=[*options, *more])

    def line(self, address: str, server: Identity) -> Line:
        """How models are sent to the process `server` at an address."""
        host, _, _ = address.rpartition(":")
        return Line(functools.partial(self.to, address, server, models=True), self._ways.to(host, is_near(host)))

    def shown_at(self, address: str) -> Tls | None:
        """The credentials with which the channel for orders at an address was made; None without TLS."""
        return self._shown.get((address, False))

    def is_connected(self, address: str) -> bool:
        """Whether a channel to the address has a connection."""
        channels = (self._open.get((address, models)) for models in (False, True))
        return any(one is not None and one.get_state() is grpc.ChannelConnectivity.READY for one in channels)

    async def drop(self, address: str, models: bool = True) -> None:
        """Close the channels to an address, if there are any; without `models`, the channel for orders alone."""
        for key in ((address, False), (address, True))[: 1 + models]:
            await self._drop(key)

    async def _drop(self, key: _Key) -> None:
        channel = self._open.pop(key, None)
        self._made.pop(key, None)
        self._shown.pop(key, None)
        if channel is not None:
            await channel.close()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(channel.close() for channel in self._open.values()))
        self._open.clear()


def describe(error: grpc.aio.AioRpcError | Any) -> str:
    """A gRPC error in one line: in plain words if no connection came about, otherwise code and first line."""
    details = visible(next(iter((error.details() or "").splitlines()), "")[:MAX_REASON])
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        if unreached := why_unreached(details):
            return unreached
        details = handshake_failure(details) or details
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "the process there does not know this call: the port belongs to another program, or a group manager"
    return f"{error.code().name}{': ' + details if details else ''}"


async def first_message(speaking: AsyncIterator[T], timeout_s: float | None = None) -> T | None:
    """The next message of a caller; None if the stream ends, or `timeout_s` pass, before a message comes.

    By default it has HELLO_TIMEOUT_S.
    """
    try:
        return await within(timeout_s or HELLO_TIMEOUT_S, anext(aiter(speaking), None))
    except TimeoutError:
        return None


async def refuse(
    context: grpc.aio.ServicerContext, code: grpc.StatusCode, why: str, speaking: AsyncIterator[Any] | None = None
) -> NoReturn:
    """End a call with a reason for the caller. A stream that is still `speaking` is read for a while first.

    Otherwise gRPC would report an internal error to a caller that is still sending, in place of the reason.
    """
    if speaking is not None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEAR_OUT_S):
                while await within(PAUSE_S, anext(speaking, None)) is not None:
                    pass
    await end(context, code, why[:MAX_REASON])
