"""Why no connection came about, in plain words in place of those of Python, gRPC and the system."""

import errno
import re

#: Host and port in the words of gRPC.
_ADDRESS = re.compile(r"(?:ipv[46]:|errors resolving |resolution failed for )(\S+:[0-9]+): ")


def _numbers(*codes: int) -> tuple[str, ...]:
    """How Python writes these numbers of errors, also where it has tried several addresses."""
    return tuple(f"[Errno {code}]" for code in codes)


#: Parts of such words -> what they mean about the address `at`. The first one that is found counts.
_WORDS = (
    (
        ("HTTP proxy returned response code 407",),
        "the proxy at {at} asks for another user or password",
    ),
    (
        ("HTTP proxy returned response code",),
        "the proxy at {at} opens no connection now",
    ),
    (
        ("gaierror", "Domain name not found", "DNS resolution failed", "errors resolving"),
        "the host name in {at} is not known",
    ),
    (
        ("SlowNamesError",),
        "the name servers of this machine did not tell the address of {at} in time",
    ),
    (
        ("Connection refused", "ConnectionRefusedError", *_numbers(errno.ECONNREFUSED)),
        "nothing listens at {at}",
    ),
    (
        ("No route to host", "Network is unreachable", *_numbers(errno.EHOSTUNREACH, errno.ENETUNREACH)),
        "there is no way from this machine to {at}",
    ),
    (
        ("TimeoutError", "Connection timed out", "connection attempt timed out", *_numbers(errno.ETIMEDOUT)),
        "{at} does not answer: its machine may be off, or a firewall may be in the way",
    ),
    (
        ("ConnectionResetError", "ConnectionAbortedError", "SSLEOFError", *_numbers(errno.ECONNRESET)),
        "{at} closed the connection at once: perhaps another program listens there, or one without TLS",
    ),
)


def why_unreached(said: str, address: str = "") -> str | None:
    """What the words about a connection to an address mean; None for other words.

    Without an address, the one that gRPC names is told.
    """
    found = _ADDRESS.search(said)
    at = address or (found[1].replace("%5B", "[").replace("%5D", "]") if found else "that address")
    return next((words.format(at=at) for parts, words in _WORDS if any(part in said for part in parts)), None)
