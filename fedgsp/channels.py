"""gRPC servers and channels with the project's settings."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NoReturn, Self, TypeVar

import grpc
import grpc.aio

from fedgsp.errors import ConfigError
from fedgsp.liveness import LOST_AFTER_S, MOST_DIAL_S, SMALL_WINDOW, keepalive
from fedgsp.tls import Tls, handshake_failure
from fedgsp.unreadable import RefuseUnreadable

T = TypeVar("T")

#: Messages stay small because weights travel in chunks; a larger one is refused by gRPC itself.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
SHUTDOWN_GRACE_S = 2.0
#: How long a caller may take to say who it is.
HELLO_TIMEOUT_S = 10.0
#: How long a caller that is refused may go on speaking, and be silent meanwhile.
HEAR_OUT_S, PAUSE_S = 10.0, 0.2
#: Characters of a refusal, which may quote its caller: gRPC drops an answer whose status exceeds 8 KiB.
MAX_REASON = 500

_CHANNEL_OPTIONS = [
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.use_local_subchannel_pool", 1),  # a channel that is dropped takes its connection along
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),  # peers are named by address; a proxy for the web has no part in it
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
]
_SERVER_OPTIONS = [
    ("grpc.so_reuseport", 0),  # with it, two servers bind one port and neither is told
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 300),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]


_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\s:/\[\]]+):([0-9]{1,5})")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port"; IPv6 hosts stand in brackets. Raises ConfigError."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65535:
        raise ConfigError(
            f"{address!r} is not an address", "write host:port, for example 127.0.0.1:7000 or [::1]:7000"
        )
    return found[1], int(found[2])


def check_address(flag: str, address: str) -> None:
    """Raise ConfigError that names the flag unless `address` is host:port."""
    try:
        split_address(address)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error.what}", error.remedy) from None


def is_wildcard(host: str) -> bool:
    """Whether a host means every interface."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host == "*"


def is_near(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def resolve(address: str, seen_host: str) -> str:
    """An address to dial: a wildcard host is the one by which the speaker was reached."""
    host, port = split_address(address)
    return f"{seen_host if is_wildcard(host) else host}:{port}"


def loopback(host: str) -> str:
    """How this machine dials a server of its own that listens at a host: a wildcard is no name to check."""
    if not is_wildcard(host):
        return host
    return "[::1]" if host == "[::]" else "127.0.0.1"


async def start_server(
    listen: str,
    register: Iterable[Callable[[grpc.aio.Server], None]],
    tls: Tls | None = None,
    lost_after_s: float = LOST_AFTER_S,
) -> tuple[grpc.aio.Server, str]:
    """A running server and the address it bound; raises ConfigError if the port is taken or the host is not ours.

    With `tls` it takes those clients alone that present a certificate of the same CA. One that is silent for
    `lost_after_s` is gone.
    """
    host, port = split_address(listen)
    window = [] if is_near(host) else SMALL_WINDOW
    settings = [*_SERVER_OPTIONS, *keepalive(lost_after_s), *window]
    server = grpc.aio.server(options=settings, interceptors=[RefuseUnreadable()])
    for add in register:
        add(server)
    bound = 0
    for found in await _addresses_of(host):
        if at := _bind(server, f"{found}:{bound or port}", tls):
            bound = at  # where it was 0, the others get the same
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
    """All that a host to listen at stands for. Of a name with several, gRPC is content if it can bind one of them."""
    if host == "*":
        return ["[::]"]
    if host == "localhost":  # as gRPC dials it, whatever this machine's resolver says
        return ["127.0.0.1", "[::1]"]
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        pass
    else:
        return [host]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter: no name can be like that
        return []
    addresses = dict.fromkeys(str(where[0]) for *_, where in found)
    return [f"[{address}]" if ":" in address else address for address in addresses]


def _bind(server: grpc.aio.Server, where: str, tls: Tls | None) -> int:
    """The port that the server has there; 0 if it cannot."""
    try:
        bound: int = server.add_secure_port(where, _server_side(tls)) if tls else server.add_insecure_port(where)
    except RuntimeError:
        return 0
    return bound


def _is_here(host: str) -> bool:
    """Whether this machine has an address, so that only its port can be in the way."""
    address = host.strip("[]")
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:  # not even this family, perhaps
        return False
    return True


def _server_side(tls: Tls) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials([(tls.key, tls.cert)], tls.ca, require_client_auth=True)


class Channels:
    """One channel per address, closed together; with `tls`, servers must prove that they are of the dialled host.

    A server that is silent for `lost_after_s` is gone.
    """

    def __init__(self, tls: Tls | None = None, lost_after_s: float = LOST_AFTER_S) -> None:
        self._open: dict[str, grpc.aio.Channel] = {}
        # The backoff is also the longest that a dial may take, 20 s by default.
        dial = ("grpc.min_reconnect_backoff_ms", round(1000 * min(lost_after_s, MOST_DIAL_S)))
        self._options = [*_CHANNEL_OPTIONS, *keepalive(lost_after_s), dial]
        self._credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert) if tls else None

    def to(self, address: str) -> grpc.aio.Channel:
        """The channel to an address; it connects by itself and reconnects after a loss."""
        if address not in self._open:
            self._open[address] = self._dial(address)
        return self._open[address]

    def _dial(self, address: str) -> grpc.aio.Channel:
        host, _, port = address.rpartition(":")
        where = f"{loopback(host)}:{port}"
        options = self._options if is_near(host) else [*self._options, *SMALL_WINDOW]
        if self._credentials is None:
            return grpc.aio.insecure_channel(where, options=options)
        return grpc.aio.secure_channel(where, self._credentials, options=options)

    async def drop(self, address: str) -> None:
        """Closes the channel to an address that will not be used again."""
        channel = self._open.pop(address, None)
        if channel is not None:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(channel.close() for channel in self._open.values()))
        self._open.clear()


def describe(error: grpc.aio.AioRpcError | Any) -> str:
    """One line of a gRPC error: its code, and the first line of its details or what they mean if TLS failed."""
    details = next(iter((error.details() or "").splitlines()), "")
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        details = handshake_failure(details) or details
    return f"{error.code().name}{': ' + details if details else ''}"


async def first_message(speaking: AsyncIterator[T]) -> T | None:
    """What a caller says first, soon; None if it does not."""
    try:
        return await asyncio.wait_for(anext(aiter(speaking), None), HELLO_TIMEOUT_S)
    except TimeoutError:
        return None


async def refuse(
    context: grpc.aio.ServicerContext, code: grpc.StatusCode, why: str, speaking: AsyncIterator[Any] | None = None
) -> NoReturn:
    """Ends a call with a reason for its caller; one that may still be `speaking` is heard out first, for a while.

    By gRPC, a caller whose message fails is told of an internal error, and not why it was refused.
    """
    if speaking is not None:
        try:
            async with asyncio.timeout(HEAR_OUT_S):
                while await asyncio.wait_for(anext(speaking, None), PAUSE_S) is not None:
                    pass
        except TimeoutError:
            pass
    await context.abort(code, why[:MAX_REASON])
    raise AssertionError("abort does not return")
