"""The doors of a top server: where nodes join, models are fetched, and nodes are checked before the first round."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc.aio

from fedgsp.connections.addresses import split_address
from fedgsp.connections.channels import SHUTDOWN_GRACE_S, start_server
from fedgsp.errors import ConfigError
from fedgsp.identity import TOP_SERVER
from fedgsp.messages import FailureCode
from fedgsp.security import local_key
from fedgsp.security.access import AccessControl, Caller
from fedgsp.security.tickets import Door, Verb
from fedgsp.security.tls import Tls
from fedgsp.settings.run import RunConfig
from fedgsp.tensors.weights import require
from fedgsp.transfers.bases import Bases
from fedgsp.transfers.link_choice import RAW
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.visible import visible
from top_server.asked import Asked
from top_server.checking.listener import ManagerDoor
from top_server.checking.servicer import CheckServicer
from top_server.federation.opening import Federated
from top_server.managers.hosts import Hosts
from top_server.managers.servicer import HostingServicer
from top_server.nodes.membership import Membership
from top_server.nodes.servicer import MembershipServicer
from top_server.record.audit import NO_AUDIT, Audit, Fetches


def models_of(store: ModelStore, audit: Audit = NO_AUDIT, wire: str = RAW) -> ModelServicer:
    """Serves the models of this process. Nobody has to wait for a model that is not here: no model will come later.

    `wire` is the setting --wire.
    """
    fetches = Fetches(audit, str(TOP_SERVER), store.__contains__)

    def served(model_id: str, reader: Caller, size: int) -> None:
        fetches.note(model_id, str(reader.reader), str(reader.proven or "unproven"), size)

    async def wanted(model_id: str) -> None:
        require(model_id in store, FailureCode.NO_SUCH_MODEL, f"the top server has no model {model_id!r}")

    return ModelServicer(store, wanted, served=served, bases=Bases(wire))


@asynccontextmanager
async def opened(
    config: RunConfig,
    membership: Membership,
    store: ModelStore,
    door: Door,
    tls: Tls | None,
    federated: Federated,
    audit: Audit,
    asked: Asked,
    hosts: Hosts | None = None,
    resumed_at: str = "",
) -> AsyncIterator[tuple[str, ManagerDoor]]:
    """Runs the server of nodes while the body runs; yields its address, and the door in place of managers.

    Nodes that are checked learn what the run will order, `asked`. Workers connect to `hosts` if they run the group
    managers. A resumed run listens where nodes look for it, `resumed_at`. Raises ConfigError if that is not possible.
    """

    def refused(method: str, peer: str, number: int, why: str) -> None:
        audit.note("refused", call=method, peer=visible(peer), so_far=number, reason=visible(why))

    joining = Door()
    doors = {Verb.JOIN: joining, Verb.CHECK: joining, Verb.FETCH: door, **federated.doors}
    free = [Verb.JOIN, Verb.CHECK, *federated.doors] if tls or config.insecure else []
    guard = AccessControl(doors, tls is not None, federated.revoked, free, refused, federated.came_back)
    listen = resumed_at or config.listen
    host, _ = split_address(listen)

    async def start(where: str, *services: Callable[[grpc.aio.Server], None]) -> tuple[grpc.aio.Server, str]:
        return await start_server(where, services, guard, tls, config.lost_after, config.insecure)

    probed = ManagerDoor(lambda port: start(f"{host}:{port}"), config.manager_port_range)
    checks = CheckServicer(membership, probed, config.manager_ports or "", asked=asked)
    models = models_of(store, audit, config.wire)
    services = [MembershipServicer(membership).add_to, models.add_to, federated.add_to, checks.add_to]
    if hosts is not None:
        services.append(HostingServicer(hosts, membership.placed, lambda: membership.local_key).add_to)
    try:
        server, address = await start(listen, *services)
    except ConfigError as error:
        if resumed_at:
            raise ConfigError(error.what, "nodes look for the run there: end the process that has that port") from None
        raise
    try:
        with local_key.offered(address) if tls is None else contextlib.nullcontext(b"") as key:
            joining.change(key)
            membership.local_key = key
            yield address, probed
    finally:
        await server.stop(SHUTDOWN_GRACE_S)
        await probed.give_way()
