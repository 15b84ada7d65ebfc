"""Whether a caller may be the node that it says it is, by its certificate. Pure.

A worker's certificate names the worker and, as its enrolment, the run that has placed it. So a worker cannot join
another run of the same CA, and a process of another run that has the name of this worker cannot join here.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from fedgsp.identity import ENROLMENT, Role, may_replace, worker
from fedgsp.messages import Failure, FailureCode, Hello
from fedgsp.security.access import Caller
from fedgsp.security.signing import has_expired
from top_server.nodes.admission import Refusal
from top_server.nodes.node import Node


def enrolment_of(run: str, name: str) -> str:
    """The URI in the certificates of a worker of a run. It is no secret: only the CA can put it into a certificate."""
    return f"{ENROLMENT}{uuid.uuid5(uuid.NAMESPACE_URL, f'fedgsp://run/{run}/{name}')}"


@dataclass(frozen=True, slots=True)
class Placed:
    """The workers of a run with their clients; None stands for all clients of the task."""

    run: str
    clients: Mapping[str, range | None] = field(default_factory=dict)

    def is_worker(self, name: str, caller: Caller) -> bool:
        """Whether a caller is the worker of this name.

        Without TLS, and with the certificate of the top server, only its name can be looked at.
        """
        if name not in self.clients or not caller.is_node(name):
            return False
        if caller.proven is None or caller.proven.role is Role.TOP_SERVER:
            return True
        return caller.proven == worker(name) and caller.enrolment == enrolment_of(self.run, name)

    def refusal(self, hello: Hello, caller: Caller) -> Refusal | None:
        """Why a worker may not join; None if it may, or if the caller is no worker."""
        if caller.proven is None or caller.proven.role is not Role.WORKER:
            return None
        name = caller.proven.name
        if not self.is_worker(name, caller):
            return _not_allowed("this run has not placed it: its certificate is good for another run")
        dealt = self.clients[name]
        foreign = [one.client for one in hello.clients if dealt is not None and one.client not in dealt]
        return _not_allowed(f"client {min(foreign)} was not dealt to it") if foreign else None


def refusal(hello: Hello, caller: Caller, placed: Placed, now: datetime) -> Refusal | None:
    """Why a caller may not be the node of its hello; None if it may, or without TLS."""
    if not caller.is_node(hello.node):
        return _not_allowed(f"it is {caller.proven}, not node {hello.node}")
    if caller.certificate and has_expired(caller.certificate, now):  # after the connection was made
        return Refusal(Failure(FailureCode.CERTIFICATE_EXPIRED, "its certificate has expired: it needs a new one"))
    return placed.refusal(hello, caller)


def is_same(name: str, caller: Caller, present: Caller) -> bool:
    """Whether a caller is the node `name` that is present, as which another connection came."""
    return may_replace(name, caller.proven, present.proven, caller.process == present.process != "")


def taken_from(caller: Caller, present: Node | None) -> tuple[str, str]:
    """From where the present node of a name is connected: what the caller is told, and what the record has.

    A caller that has shown the key of the user learns it, to find the other process. A stranger learns nothing.
    """
    at = f"from {present.caller.address}" if present is not None and present.caller.address else ""
    return (f", {at}" if at else "", "") if caller.reader is not None else ("", at)


def _not_allowed(why: str) -> Refusal:
    return Refusal(Failure(FailureCode.NOT_ALLOWED, why))
