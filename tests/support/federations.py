"""A federation for tests: its folder, its invitations, and the door of a top server that has it."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.connections.channels import Channels
from fedgsp.identity import TOP_SERVER, Identity
from fedgsp.messages import NodeMessage, TopServerMessage
from fedgsp.security.access import AccessControl, shown
from fedgsp.security.certificates import Key, new_key, pem_of, pem_of_key, read
from fedgsp.security.invitation import Invitation, invitation_in
from fedgsp.security.tickets import Door, Verb
from fedgsp.security.tls import Tls, TlsFiles, load
from fedgsp.settings.run import RunConfig
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import enrolment_pb2, enrolment_pb2_grpc, membership_pb2_grpc
from fedgsp_node.enrolment import client, folder
from tests.support.callers import ISSUER
from tests.support.hellos import hello, membership
from tests.support.recorder import Recorder
from tests.support.serving import serving
from top_server.doors import models_of
from top_server.federation import commands, enrolments
from top_server.federation.opening import Federated, certify
from top_server.nodes.membership import Membership
from top_server.nodes.servicer import MembershipServicer
from top_server.record.audit import Audit


@dataclass
class Managers:
    """In place of the pool of managers: what it was told."""

    told: list[set[str]] = field(default_factory=list)

    async def revoke(self, enrolments: Collection[str]) -> None:
        self.told.append(set(enrolments))


@dataclass
class Scene:
    """A top server with a federation, as nodes see it, and what it has recorded."""

    path: Path
    address: str
    membership: Membership
    recorder: Recorder
    managers: Managers
    store: ModelStore
    audit: Audit

    def invite(self, name: str, clients: str = "0-1", **more: Any) -> Invitation:
        return invite(self.path, name, clients, **more)

    def revoke(self, name: str) -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            commands.revoke(name, federation=self.path)

    async def enrol(self, name: str, clients: str = "0-1", **more: Any) -> Tls:
        """A node that is enrolled: its credentials."""
        return await self.use(self.invite(name, clients, **more))

    async def use(self, invitation: Invitation) -> Tls:
        """Uses an invitation as `fedgsp-node enrol` does."""
        key, where = new_key(), self.path.parent / f"identity-{invitation.name}"
        folder.prepare(where, invitation)
        certificate = await client.enrol(invitation, key, self.address)
        folder.write(where, read(invitation.ca), certificate, key)
        tls = load(folder.files_in(where))
        assert tls is not None
        return tls

    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.recorder.events if event["event"] == "node_refused"]


def invite(path: Path, name: str, clients: str = "0-1", **more: Any) -> Invitation:
    """As `top-server invite`."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        commands.invite(name, clients=clients, federation=path, **more)
    return invitation_in(out.getvalue())


def holding(where: Path, ca: bytes, certificate: bytes, key: Key) -> Tls:
    """Credentials of a certificate (both in DER) that a test has got hold of."""
    where.mkdir(exist_ok=True)
    files = TlsFiles(where / "ca.pem", where / "own.pem", where / "own.pem")
    files.ca.write_bytes(pem_of(read(ca)))
    files.cert.write_bytes(pem_of(read(certificate)) + pem_of_key(key))
    files.cert.chmod(0o600)
    return Tls(files, files.ca.read_bytes(), pem_of(read(certificate)), pem_of_key(key))


@asynccontextmanager
async def federated(path: Path, monkeypatch: Any, ready: asyncio.Event | None = None) -> AsyncIterator[Scene]:
    """A top server whose federation is in `path`. Changes of the registry are noticed at once.

    With `ready`, its managers start once that event is set, and only then changes are noticed.
    """
    monkeypatch.setattr(enrolments, "POLL_S", 0.01)
    invite(path, "nobody", "1000")
    config = RunConfig(federation=path, listen="127.0.0.1:0")
    certify(config)
    members, recorder = membership()
    store, managers = ModelStore(), Managers()
    audit = Audit()
    here: Any = Federated(config, members, recorder, audit)

    def register(server: grpc.aio.Server) -> None:
        membership_pb2_grpc.add_MembershipServiceServicer_to_server(MembershipServicer(members), server)
        models_of(store).add_to(server)
        here.add_to(server)

    doors = {Verb.JOIN: Door(), Verb.FETCH: Door(ISSUER.key_of(TOP_SERVER)), **here.doors}
    guard = AccessControl(doors, True, here.revoked, [Verb.JOIN, *here.doors], came_back=here.came_back)
    async with serving(register, tls=load(config.tls_files), access=guard) as served, AsyncExitStack() as stack:

        async def follow() -> None:
            if ready is not None:
                await ready.wait()
            await stack.enter_async_context(here.followed(managers))

        following = asyncio.create_task(follow())
        if ready is None:
            await following
        yield Scene(path, served.address, members, recorder, managers, store, audit)
        await following


@asynccontextmanager
async def dialled(tls: Tls, address: str, who: Identity = TOP_SERVER) -> AsyncIterator[grpc.aio.Channel]:
    async with Channels(tls) as channels:
        yield await channels.to(address, who)


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    found: grpc.StatusCode = caught.value.code()
    return found


async def end_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a stream ends that says nothing more."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        assert await call.read() is grpc.aio.EOF
    return await call.code(), await call.details()


async def answer(tls: Tls, scene: Scene, method: str, request: bytes) -> Any:
    async with dialled(tls, scene.address) as channel:
        stub: Any = enrolment_pb2_grpc.EnrolmentServiceStub(channel)
        return await getattr(stub, method)(enrolment_pb2.CertificateRequest(request=request), timeout=20)


async def joins(channel: grpc.aio.Channel, name: str, clients: tuple[int, ...], process: str = "p") -> tuple[Any, Any]:
    """The stream of a node and the first answer. `process` is the number of its process."""
    call = membership_pb2_grpc.MembershipServiceStub(channel).Join(metadata=shown(b"", process))
    await call.write(wire.encode(NodeMessage(hello(name, clients, peer_address=""))))
    answered = await call.read()
    return call, wire.decode(TopServerMessage, answered).kind
