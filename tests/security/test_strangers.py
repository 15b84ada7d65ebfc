"""A stranger on the same machine, without the key of the run's user, calls everything that a running system serves."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.connections.handlers import Opening
from fedgsp.errors import ConfigError, PeerError
from fedgsp.messages import (
    AttachTo,
    Failure,
    FailureCode,
    Leave,
    MakeConstants,
    Revoked,
    TopServerMessage,
    Welcome,
)
from fedgsp.security import local_key, proofs
from fedgsp.security.access import ANSWER, TICKET
from fedgsp.security.revocation import REASON
from fedgsp.security.tickets import KEY_BYTES
from fedgsp_node import server as node_server
from tests.support.cluster import nodes, settings
from tests.support.serving import serving
from tests.support.strangers import assert_unharmed


async def test_a_stranger_gets_nothing_learns_nothing_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = nodes([0, 2, 4, 6], [1, 3, 5, 7])
    await assert_unharmed(settings(tmp_path / "run"), hosts, monkeypatch)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run a process as another user")
def test_another_user_cannot_read_the_key(tmp_path: Path) -> None:
    with local_key.offered("127.0.0.1:7777") as key:
        path = local_key.folder() / "127.0.0.1:7777"
        assert path.read_bytes() == key
        stranger = subprocess.run(["cat", path], user=65534, capture_output=True, check=False)
        assert (stranger.returncode, stranger.stdout) == (1, b"")
        assert b"Permission denied" in stranger.stderr
    assert not path.exists()


def test_servers_at_one_port_of_several_addresses_keep_their_keys() -> None:
    with local_key.offered("127.0.0.1:7777") as key:
        with local_key.offered("127.0.0.2:7777") as other, local_key.offered("[::1]:7777"):
            assert local_key.found("127.0.0.1:7777") == key
            assert local_key.found("127.0.0.2:7777") == other
        assert local_key.found("127.0.0.1:7777") == key
    assert local_key.found("127.0.0.1:7777") is None


@pytest.mark.parametrize(
    ("listens", "dialled"),
    [
        ("localhost", ["localhost", "127.0.0.1", "[::1]", "[0:0::1]"]),
        ("*", ["localhost", "127.0.0.1", "[::1]", "127.0.0.5"]),
        ("0.0.0.0", ["localhost", "127.0.0.1", "127.0.0.5"]),
        ("[::]", ["[::1]", "127.0.0.1"]),
    ],
)
def test_the_key_of_a_server_is_found_by_every_address_that_reaches_it(listens: str, dialled: list[str]) -> None:
    (local_key.folder() / "127.0.0.1:7777").write_bytes(bytes(KEY_BYTES))  # of a server that was killed
    with local_key.offered(f"{listens}:7777") as key:
        assert [local_key.found(f"{host}:7777") for host in dialled] == [key] * len(dialled)
    assert local_key.found("127.0.0.1:7777") is None


def test_a_folder_that_another_user_prepared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = local_key.folder()
    assert place.stat().st_mode & 0o777 == 0o700
    place.chmod(0o755)
    with pytest.raises(ConfigError, match="is not a folder that only this user can enter"):
        local_key.folder()
    place.rmdir()
    place.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder that only this user can enter"):
        local_key.folder()


#: What a top server says to a node.
SAID = (
    *(Welcome("run"), AttachTo("m0", "127.0.0.1:1"), Leave(True, "done"), Revoked(("abc",)), MakeConstants(1)),
    Failure(FailureCode.NOT_ALLOWED, "go away"),
)


#: What a stranger says first, how it answers the question of the node, and how it ends.
STRANGERS = [
    *((first, None, "silence") for first in range(len(SAID))),
    (None, None, "revoked"),
    *((0, answered, ending) for answered in (None, b"", bytes(32)) for ending in ("silence", "end", "abort")),
]


@pytest.mark.parametrize(("first", "answered", "ending"), STRANGERS[1:])
async def test_a_node_works_for_no_top_server_that_does_not_know_the_key(
    first: int | None, answered: bytes | None, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user has taken the port, and says what a top server says, in any order."""
    monkeypatch.setattr(proofs, "_ENDING_S", 0.05)
    heard: list[bytes] = []

    async def join(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes | Opening]:
        heard.append(next((value for key, value in context.invocation_metadata() or () if key == TICKET), b""))
        await anext(request)
        if answered is not None:
            yield Opening(((ANSWER, answered),))
        for message in (*SAID[first:], *SAID[:first]) if first is not None else ():
            yield wire.encode(TopServerMessage(message)).SerializeToString()
        if ending == "silence":
            await asyncio.Event().wait()
        if ending == "abort":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        if ending == "revoked":
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, REASON)

    handler = grpc.stream_stream_rpc_method_handler(join)

    def register(server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("fedgsp.v1.MembershipService", {"Join": handler}),)
        )

    async with serving(register) as served:
        with local_key.offered(served.address) as key:
            (settings,) = nodes([0])
            patience = 0.5 if ending == "revoked" else 10  # it is asked again
            with pytest.raises(PeerError, match=r"is not a server of this user|no top server at .* for 0 s"):
                await node_server.run(
                    dataclasses.replace(settings, top_server=served.address, connect_timeout=patience)
                )
    assert heard
    assert key not in heard[0]


@pytest.mark.parametrize("first", SAID[1:4], ids=[type(said).__name__ for said in SAID[1:4]])
async def test_a_node_obeys_no_top_server_that_has_not_admitted_it(first: Any) -> None:
    """Also one that needs no key, or has a certificate: the policy of the node judges runs when it is admitted."""

    async def join(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        await anext(request)
        yield wire.encode(TopServerMessage(first)).SerializeToString()
        await asyncio.Event().wait()

    handler = grpc.stream_stream_rpc_method_handler(join)

    def register(server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("fedgsp.v1.MembershipService", {"Join": handler}),)
        )

    (settings,) = nodes([0])
    async with serving(register) as served:
        with pytest.raises(PeerError, match="asked for something before it admitted this node"):
            await node_server.run(dataclasses.replace(settings, top_server=served.address, insecure=True))


async def test_a_node_of_another_user_is_told_what_to_do(tmp_path: Path) -> None:
    (settings,) = nodes([0])
    async with serving() as served:
        with pytest.raises(PeerError, match="start both as the same user of this machine"):
            await node_server.run(dataclasses.replace(settings, top_server=served.address, connect_timeout=0.1))
