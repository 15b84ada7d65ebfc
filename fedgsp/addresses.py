"""Addresses such as 127.0.0.1:7000, as people and processes write them; without gRPC."""

import ipaddress
import re

from fedgsp.errors import ConfigError

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


def resolve(address: str, seen_host: str) -> str:
    """The address to dial: a wildcard host is replaced by the host at which the speaker was reached."""
    host, port = split_address(address)
    return f"{seen_host if is_wildcard(host) else host}:{port}"


def loopback(host: str) -> str:
    """The host by which this machine dials its own server that listens at `host`."""
    if not is_wildcard(host):
        return host
    return "[::1]" if host == "[::]" else "127.0.0.1"
