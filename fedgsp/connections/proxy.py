"""The HTTP proxy of a site: it opens connections to other machines for a node (CONNECT; RFC 9110, section 9.3.6)."""

import asyncio
import base64
import os
import re
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedgsp.connections.addresses import ip_of, loopback, split_address
from fedgsp.connections.liveness import NEXT_ADDRESS_S
from fedgsp.connections.unreached import why_unreached
from fedgsp.errors import ConfigError, PeerError, reason_of
from fedgsp.files import read_text
from fedgsp.settings.proxies import PASSWORD_VARIABLE, proxy_parts
from fedgsp.visible import visible
from fedgsp.within import within

#: Longest wait for the addresses of a host, in seconds. If the first name server of a machine is dead, the second one
#: is asked after five seconds.
LOOK_UP_S = 12.0
#: Most bytes of a file with a password, and of the answer of a proxy.
_MOST_PASSWORD, _MOST_ANSWER = 4096, 1 << 14
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: ([^\r\n]*))?\r?\n")
#: Status of the answer to CONNECT -> what it says about the proxy {proxy} and the address {address}, and what to do.
#: Status 407 has its own words.
_REFUSALS = {
    **dict.fromkeys(
        (401, 403),
        (
            "the proxy at {proxy} does not allow connections to {address}",
            "ask its administrators to allow CONNECT to the port of the top server and to its --manager-ports",
        ),
    ),
    **dict.fromkeys(
        (400, 404, 405, 501),
        ("the server at {proxy} opens no connections to other machines", "give --proxy an HTTP proxy with CONNECT"),
    ),
    **dict.fromkeys(
        (500, 502, 503, 504),
        (
            "the proxy at {proxy} does not reach {address}",
            "check that the top server runs, and that its address and ports are reachable from the proxy",
        ),
    ),
}


class SlowNamesError(OSError):
    """The name servers of this machine did not tell the addresses of a host in time."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy, and how this node proves itself to it."""

    #: host:port.
    address: str
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def options(self) -> list[tuple[str, Any]]:
        """The options of a channel of gRPC whose connections the proxy opens."""
        given = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}@" if self.user else ""
        return [("grpc.enable_http_proxy", 1), ("grpc.http_proxy", f"http://{given}{self.address}")]

    async def connect(self, address: str, timeout_s: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to host:port by way of the proxy; raises PeerError if there is none."""
        host, port = split_address(self.address)
        try:
            reader, writer = await _reached(host, port, timeout_s, limit=_MOST_ANSWER)
        except (OSError, UnicodeError) as error:
            said = f"{type(error).__name__}: {error}"
            raise PeerError(
                f"the proxy cannot be reached: {why_unreached(said, self.address) or said}",
                "correct --proxy, or leave it out if this machine needs none",
            ) from None
        status, phrase = 0, ""
        try:
            async with asyncio.timeout(timeout_s):
                writer.write(self._request(address))
                await writer.drain()
                status, phrase = await _status(reader)
        except TimeoutError:
            raise PeerError(
                f"the proxy at {self.address} does not answer", "try again, or ask its administrators"
            ) from None
        except OSError:
            pass  # it hung up without an answer
        finally:
            if not _is_good(status):
                writer.transport.abort()
        if not _is_good(status):
            raise self._refused(status, phrase, address)
        return reader, writer

    async def check(self, address: str, timeout_s: float) -> None:
        """Raises PeerError unless the proxy opens a connection to host:port."""
        _, writer = await self.connect(address, timeout_s)
        writer.transport.abort()

    def _request(self, address: str) -> bytes:
        lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
        if self.user:
            proof = base64.b64encode(f"{self.user}:{self.password}".encode()).decode("ascii")
            lines.append(f"Proxy-Authorization: Basic {proof}")
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def _refused(self, status: int, phrase: str, address: str) -> PeerError:
        told = f" ({status}{f' {phrase}' if phrase else ''})" if status else ""
        if status == 407 and self.user:
            return PeerError(
                f"the proxy at {self.address} does not accept this user and password{told}",
                f"correct USER in --proxy, and the password in --proxy-password or {PASSWORD_VARIABLE};"
                " only the Basic scheme is known here",
            )
        if status == 407:
            return PeerError(
                f"the proxy at {self.address} asks for a user and a password{told}",
                f"give --proxy http://USER@HOST:PORT, and the password in a file (--proxy-password FILE) or in"
                f" {PASSWORD_VARIABLE}",
            )
        what, remedy = _REFUSALS.get(
            status,
            ("the server at {proxy} does not answer as an HTTP proxy does", "give --proxy an HTTP proxy with CONNECT"),
        )
        return PeerError(what.format(proxy=self.address, address=address) + told, remedy)


def _is_good(status: int) -> bool:
    return 200 <= status < 300


async def _status(reader: asyncio.StreamReader) -> tuple[int, str]:
    """The status of an answer of HTTP, with its words; 0 if it is none."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        head = getattr(error, "partial", b"")
    found = _STATUS.match(head)
    return (int(found[1]), visible((found[2] or b"").decode("latin-1")[:60])) if found else (0, "")


async def open_connection(
    proxy: Proxy | None,
    address: str,
    timeout_s: float,
    context: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
) -> asyncio.StreamWriter:
    """The writer of a connection to host:port, by way of the proxy if there is one, with TLS if there is a context.

    Each step has `timeout_s`. Raises OSError (also TimeoutError) if no connection comes about, and PeerError if the
    proxy does not open one.
    """
    if proxy is None:
        host, port = split_address(address)
        _, writer = await _reached(loopback(host), port, timeout_s, ssl=context, server_hostname=server_hostname)
        return writer
    _, writer = await proxy.connect(address, timeout_s)
    if context is not None:
        try:
            async with asyncio.timeout(timeout_s):
                await writer.start_tls(context, server_hostname=server_hostname)
        except BaseException:
            writer.transport.abort()
            raise
    return writer


async def _reached(
    host: str, port: int, timeout_s: float, **more: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to host:port, within `timeout_s` beside the time that the name of the host takes.

    A peer that does not answer must soon be served in another way. A name server that does not answer says nothing of
    the peer.
    """
    loop, host = asyncio.get_running_loop(), host.strip("[]")
    begin = loop.time()
    if ip_of(host) is None:
        try:
            await within(LOOK_UP_S, loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except TimeoutError:
            raise SlowNamesError(f"no address of {host} in {LOOK_UP_S:.0f} s") from None
    async with asyncio.timeout(timeout_s + loop.time() - begin):  # asyncio looks the name up again
        return await asyncio.open_connection(host, port, happy_eyeballs_delay=NEXT_ADDRESS_S, **more)


def proxy_of(url: str | None, password_file: Path | None) -> Proxy | None:
    """The proxy of `--proxy`, with the password from a file or from the environment; None if there is no proxy.

    Raises ConfigError.
    """
    if url is None:
        what = "--proxy-password is for a proxy, and there is none"
        ConfigError.require(password_file is None, what, "give --proxy, or leave it out")
        return None
    # gRPC would leave out the proxy for hosts in `no_proxy`, and this process would not.
    os.environ["no_grpc_proxy"] = "none.invalid"  # noqa: SIM112 - the name that gRPC reads
    address, user = proxy_parts(url)
    password = os.environ.get(PASSWORD_VARIABLE, "")
    if password_file is not None:
        try:
            password = read_text(password_file, _MOST_PASSWORD).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--proxy-password {password_file} cannot be read: {reason_of(error)}", "give the file of a password"
            ) from None
    if bool(user) != bool(password):
        what = "has no user, and there is a password" if password else "has a user, and there is no password"
        raise ConfigError(
            f"--proxy {what}",
            f"write http://USER@HOST:PORT, and give the password in a file (--proxy-password FILE) or in"
            f" {PASSWORD_VARIABLE}; or give neither",
        )
    return Proxy(address, user, password)
