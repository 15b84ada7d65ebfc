"""Connections that do not come about are told in plain words, with host and port."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import grpc
import pytest

from fedgsp.connections.channels import Channels, describe
from fedgsp.connections.unreached import why_unreached
from fedgsp.errors import PeerError
from fedgsp.identity import TOP_SERVER
from tests.support.certificates import Authority, unchecked
from tests.support.serving import nobody

RAW = ("Error", "rrno", "UNKNOWN", "ipv4:")


async def test_a_port_where_nobody_listens_is_named_with_and_without_tls(tmp_path: Path) -> None:
    async with nobody() as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.channel.unary_unary("/x/Y")(b"")
        assert describe(caught.value) == f"nothing listens at {served.address}"
        async with Channels(unchecked(Authority(tmp_path).issue("n"))) as channels:
            with pytest.raises(PeerError) as refused:
                await channels.to(served.address, TOP_SERVER)
        assert f"nothing listens at {served.address}; start it, or correct its address" in str(refused.value)
        assert not any(raw in str(refused.value) for raw in RAW)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), "the host name in h:7 is not known"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 7)"), "nothing listens at h:7"),
        (OSError(f"Multiple exceptions: [Errno {errno.ECONNREFUSED}] a, [Errno {errno.ECONNREFUSED}] b"), "nothing"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "there is no way from this machine to h:7"),
        (TimeoutError(), "h:7 does not answer"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), "h:7 closed the connection at once"),
    ],
)
def test_the_errors_of_python_have_words(error: OSError, words: str) -> None:
    assert words in str(why_unreached(f"{type(error).__name__}: {error}", "h:7"))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("errors resolving a.invalid:7: [field:hostname lookup error:x: Domain name not found]", "a.invalid:7 is not"),
        ("failed to connect; last error: UNKNOWN: ipv6:%5B::1%5D:7: Connection refused", "nothing listens at [::1]:7"),
        ("last error: UNAVAILABLE: ipv4:10.0.0.1:7: connection attempt timed out", "10.0.0.1:7 does not answer"),
    ],
)
def test_the_errors_of_grpc_have_words(said: str, words: str) -> None:
    assert words in str(why_unreached(said))


def test_other_words_stay() -> None:
    assert why_unreached("the certificate of this node was revoked") is None
