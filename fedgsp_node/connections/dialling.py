"""Which hosts a node dials: that of its top server, and those that its policy lists."""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fedgsp.connections.addresses import ip_of, is_near, resolve, split_address
from fedgsp.settings.policy import ANY_HOST, Policy

IP = ipaddress.IPv4Address | ipaddress.IPv6Address
#: Longest wait for the addresses of the top server, in seconds.
LOOK_UP_S = 10.0
#: The same behind a proxy, which looks up names itself: the name server of this site may not answer for that name.
LOOK_UP_BESIDE_PROXY_S = 1.0


@dataclass(frozen=True, slots=True)
class TopServer:
    """Where the top server is: its host and port as its node was given them, and the host's addresses."""

    host: str
    port: int
    ips: Collection[IP] = ()


def why_not(address: str, policy: Policy, top: TopServer) -> str:
    """Why a node may not dial an address; empty if it may. Raises ConfigError for what is no address.

    A name is only compared with names, never looked up: whoever sends the name could also choose what it stands for.
    """
    host, port = split_address(resolve(address, top.host))
    listed = any(entry == ANY_HOST or _covers(entry, host) for entry in policy.hosts)
    if not (listed or _is_top_server(host, top)):
        return (
            f"{host}:{port} is neither at the host of --top-server nor listed in hosts of the policy of this node:"
            f" its owner can allow it (--allow hosts={_entry(host)})"
        )
    own = port == top.port and _is_top_server(host, top)
    if not own and not policy.ports.covers(str(port)):
        return (
            f"port {port} of {host} is not listed in ports of the policy of this node:"
            f" its owner can allow it (--allow ports={port})"
        )
    return ""


class Dialling:
    """What a node may dial. The addresses of the top server are looked up before each connection to it."""

    def __init__(self, policy: Policy, top_server: str, proxied: bool = False) -> None:
        """`proxied`: all connections go through a proxy."""
        self._policy = policy
        self._patience_s = LOOK_UP_BESIDE_PROXY_S if proxied else LOOK_UP_S
        self._top = TopServer(*split_address(top_server))

    async def look_up(self) -> None:
        """Looks up the addresses of the top server's host; keeps the last ones if that fails."""
        loop, top = asyncio.get_running_loop(), self._top
        try:
            async with asyncio.timeout(self._patience_s):
                found = await loop.getaddrinfo(top.host.strip("[]"), top.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # TimeoutError is an OSError
            return
        ips = {_plain(str(where[0])) for *_, where in found}
        # Whoever answers for a name must not make it stand for this machine.
        self._top = TopServer(top.host, top.port, frozenset(ip for ip in ips if not _is_special(ip)))

    def why_not(self, address: str) -> str:
        """Why an address may not be dialled; empty if it may. Raises ConfigError for what is no address."""
        return why_not(address, self._policy, self._top)


def _plain(text: str) -> IP:
    """An IP address; an IPv4 address within an IPv6 address counts as the IPv4 address."""
    ip = ipaddress.ip_address(text)
    return getattr(ip, "ipv4_mapped", None) or ip


def _entry(host: str) -> str:
    """The entry of `hosts` for this host alone."""
    ip = ip_of(host)
    return _name(host) if ip is None else str(_plain(str(ip))).partition("%")[0]


def _name(host: str) -> str:
    return host.lower().removesuffix(".")


def _is_loopback_name(host: str) -> bool:
    return re.fullmatch(r"(?:.*\.)?localhost", _name(host)) is not None


def _is_top_server(host: str, top: TopServer) -> bool:
    ip = ip_of(host)
    if ip is None:
        return _name(host) == _name(top.host) or (_is_loopback_name(host) and is_near(top.host))
    own, there = _plain(str(ip)), ip_of(top.host)
    if own.is_loopback and is_near(top.host):
        return True
    return own in top.ips or (there is not None and own == _plain(str(there)))


def _covers(entry: str, host: str) -> bool:
    """Whether an entry of `hosts` covers a host.

    Loopback, link-local and other special addresses are covered only by entries that have nothing else in them.
    """
    try:
        network = ipaddress.ip_network(entry)
    except ValueError:
        if ip_of(host) is not None:
            return False
        return fnmatchcase(_name(host), _name(entry)) and (not _is_loopback_name(host) or _is_loopback_name(entry))
    ip = ip_of(host)
    if ip is None:
        return False
    own = _plain(str(ip))
    return own.version == network.version and own in network and (not _is_special(own) or _is_special(network))


def _is_special(where: IP | ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    """Whether an address, or a whole network, is of this machine, of this link, or of no machine."""
    return where.is_loopback or where.is_link_local or where.is_multicast or where.is_unspecified or where.is_reserved
