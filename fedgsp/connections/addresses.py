"""Addresses such as 127.0.0.1:7000, as people and processes write them; without gRPC."""

import ipaddress
import re

from fedgsp.errors import ConfigError

_ADDRESS = re.compile(
    r"(\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|\*|[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?):([0-9]{1,5})", re.ASCII
)
#: What ends such a name is read as an IPv4 address by resolvers: 127.1, 0x7f000001, 2130706433.
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port"; IPv6 hosts stand in brackets. Raises ConfigError."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65535 or (_looks_like_ip(found[1]) and ip_of(found[1]) is None):
        raise ConfigError(
            f"{address!r} is not an address", "write host:port, for example 127.0.0.1:7000 or [::1]:7000"
        )
    return found[1], int(found[2])


def _looks_like_ip(host: str) -> bool:
    return host.startswith("[") or _NUMERIC.fullmatch(host) is not None


def target(address: str) -> str:
    """The address as a target of gRPC that means this host and port, and nothing else.

    gRPC would take `unix:7000` alone for a socket in the file system, and other hosts for other schemes.
    """
    return f"dns:///{address.replace('%', '%25')}"


def check_address(flag: str, address: str) -> None:
    """Raise ConfigError that names the flag unless `address` is host:port."""
    try:
        split_address(address)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error.what}", error.remedy) from None


def check_host(flag: str, host: str) -> None:
    """Raise ConfigError that names the flag unless `host` is one host's name or IP address."""
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    try:
        split_address(f"{bracketed}:1")
        if not is_wildcard(bracketed):
            return
    except ConfigError:
        pass
    raise ConfigError(
        f"{flag} {host!r} is not a host", "give a name or an IP address, such as top.example.org or 10.0.0.1"
    )


def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that a host is, with or without brackets; None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def is_wildcard(host: str) -> bool:
    """Whether a host means every interface."""
    ip = ip_of(host)
    return host == "*" if ip is None else ip.is_unspecified


def is_near(host: str) -> bool:
    """Whether a host is this machine."""
    ip = ip_of(host)
    return host == "localhost" if ip is None else ip.is_loopback


def advertised(advertise: str | None, bound: str) -> str:
    """The address that others dial: `advertise`, or else the bound one. HOST:0 stands for HOST and the bound port."""
    host, port = split_address(advertise or bound)
    return f"{host}:{port or split_address(bound)[1]}"


def resolve(address: str, seen_host: str) -> str:
    """The address to dial: a wildcard host is replaced by the host at which the speaker was reached."""
    host, port = split_address(address)
    return f"{seen_host if is_wildcard(host) else host}:{port}"


def loopback(host: str) -> str:
    """The host by which this machine dials its own server that listens at `host`."""
    if not is_wildcard(host):
        return host
    return "[::1]" if host == "[::]" else "127.0.0.1"
