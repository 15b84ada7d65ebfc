"""Collects all facts of a check: of the network, of this machine, and whether the top server would take the node."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from fedgsp.connections.channels import Channels
from fedgsp.connections.proxy import proxy_of
from fedgsp.errors import PeerError, UserError
from fedgsp.files import MOST_OF_PEM, read_file
from fedgsp.identity import Role
from fedgsp.messages import PROTOCOL, HostedClient, WouldTake
from fedgsp.security.revocation import Revocations
from fedgsp.security.tickets import Door
from fedgsp.security.tls import Tls
from fedgsp.settings.node_check import CheckSettings
from fedgsp.transfers.model_store import ModelStore
from fedgsp.versions import versions
from fedgsp_node.check import client
from fedgsp_node.check.facts import NOT_REACHED, Answered, Certificate, Fact, Facts, Unchecked
from fedgsp_node.check.orders import refused_orders
from fedgsp_node.connections.credentials import credentials, name_of
from fedgsp_node.connections.dialling import Dialling
from fedgsp_node.policies.policy_file import policy_of

if TYPE_CHECKING:
    from fedgsp_node.clients import Clients

T = TypeVar("T")

#: Deadline of all that concerns the network, in seconds; the question about the admission has ANSWER_S after it.
NETWORK_S = 6.5


async def look(settings: CheckSettings) -> Facts:
    """All facts about a node with these settings, and about its top server.

    Raises ConfigError for a policy or a password that cannot be read, or a name that cannot be one.
    """
    policy, tls = policy_of(settings.policy, settings.allow), _attempt(lambda: credentials(settings))
    known = tls.identity if isinstance(tls, Tls) else None
    name = name_of(settings, known.name if known is not None and known.role is Role.NODE else "")
    facts = Facts(address=settings.top_server, now=time.time(), protocol=PROTOCOL, own_versions=versions())
    facts.name, facts.insecure, facts.own_task = f"node {name}", settings.insecure, ":" in settings.task
    if settings.tls_files is not None:
        facts.own, facts.shown = _own(settings, tls, facts.now), NOT_REACHED
    usable = tls if isinstance(tls, Tls) else None
    proxy = proxy_of(settings.proxy, settings.proxy_password)
    facts.proxy = NOT_REACHED if proxy is not None else None
    async with Channels(usable, settings.lost_after, settings.insecure, proxy) as channels:
        needs_key = settings.tls_files is None and not settings.insecure
        top = client.TopServer(settings.top_server, channels, name, needs_key)
        dialling = Dialling(policy, settings.top_server, proxied=proxy is not None)
        late = PeerError("the network is too slow for a check", "try again, or use a faster connection")
        await client.within(NETWORK_S, client.look(facts, top, dialling, channels, tls, proxy), late)
        from fedgsp_node.check import local  # imports torch, which would keep answers of the network waiting

        clients = await local.look(settings, policy, facts)
        await _admission(settings, facts, clients, top, usable, name)
        if isinstance(facts.admission, WouldTake) and clients is not None:
            facts.orders = refused_orders(
                facts.admission, policy, clients.hosted, clients.task_tensors, clients.task.drop_last
            )
        elif isinstance(facts.answered, Answered):
            facts.orders = Unchecked("see admission")
    return facts


def _attempt(call: Callable[[], T]) -> T | UserError:
    try:
        return call()
    except UserError as error:
        return error


def _own(settings: CheckSettings, tls: Tls | UserError | None, now: float) -> Fact[Certificate]:
    """The certificate of this node by its dates; the error that `start` would have if it is not about dates."""
    from cryptography import x509

    from fedgsp_node.check.certificates import read

    assert settings.tls_files is not None
    try:
        pem = read_file(settings.tls_files.cert, MOST_OF_PEM)
        found = read(x509.load_pem_x509_certificate(pem))
    except (OSError, ValueError):
        return tls if isinstance(tls, UserError) else None
    good_now = found.begins.timestamp() <= now < found.ends.timestamp()
    return tls if isinstance(tls, UserError) and good_now else found


async def _admission(
    settings: CheckSettings, facts: Facts, clients: Clients | None, top: client.TopServer, tls: Tls | None, name: str
) -> None:
    """Asks the top server whether it would take this node, with its peer port open if it has one."""
    if not isinstance(facts.answered, Answered):
        return
    if clients is None:
        facts.admission = Unchecked("the task, its data or its model cannot be used")
        return
    from fedgsp_node.connections.hello import hello_of
    from fedgsp_node.server import peer_server

    try:
        async with peer_server(settings, ModelStore(), tls, Door(), Revocations()) as address:
            facts.peer = (
                f"this node can listen at {address}; whether others reach it is not known" if address else None
            )
            hello = hello_of(settings, clients, name, address)
            # How many samples there are, and errors that may quote them, are not told before the node joins.
            blank = tuple(HostedClient(hosted.client, 0, 0, hosted.name) for hosted in hello.clients)
            late = PeerError("the top server does not answer in time", "try again")
            asked = top.judge(dataclasses.replace(hello, clients=blank, class_counts_failed=None))
            facts.admission = await client.within(client.ANSWER_S, asked, late)
    except UserError as error:
        facts.peer, facts.admission = error, Unchecked("see peer port")
