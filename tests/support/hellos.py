"""Nodes that introduce themselves, and the membership that they join."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedgsp.messages import (
    PROTOCOL,
    AttachTo,
    Failure,
    Hello,
    HostedClient,
    Leave,
    MakeConstants,
    RelayMode,
    Revoked,
    Welcome,
)
from tests.support.callers import ISSUER
from tests.support.recorder import Recorder
from tests.support.weights import TENSORS
from top_server.nodes.membership import Membership


def hello(node: str = "n0", clients: tuple[int, ...] = (0, 1), **changes: Any) -> Hello:
    hosted = tuple(HostedClient(client, 10 + client, 5) for client in clients)
    return dataclasses.replace(Hello(PROTOCOL, node, "digits", 10, hosted, TENSORS, "127.0.0.1:7000", 1000), **changes)


def membership(relay: RelayMode = RelayMode.AUTO, **rest: Any) -> tuple[Membership, Recorder]:
    recorder = Recorder()
    return Membership("run-1", "digits", relay, recorder, ISSUER, **rest), recorder


Said = Welcome | Failure | AttachTo | Leave | Revoked | MakeConstants | None


def bare(message: Said) -> Said:
    """A message of the top server without keys and tickets, as tests write it down."""
    if isinstance(message, Welcome):
        return dataclasses.replace(message, key=b"")
    return dataclasses.replace(message, ticket=b"") if isinstance(message, AttachTo) else message
