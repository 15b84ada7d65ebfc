"""Who may call what: one table for all RPCs, and the interceptor that keeps to it on every server.

With TLS, the caller's identity is in its certificate. Most calls also need a ticket for what they ask for (see
`fedgsp.security.tickets`). Without TLS, the ticket alone says who the caller is.
"""

import contextlib
import functools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import grpc.aio

from fedgsp.connections.endings import told
from fedgsp.connections.handlers import around
from fedgsp.identity import Identity, Role, enrolment_in, identity_in
from fedgsp.security.revocation import REASON, Revocations
from fedgsp.security.signing import path_to_ca, uris_in
from fedgsp.security.tickets import Door, Ticket, Verb
from fedgsp.seldom import is_told
from fedgsp.within import within

logger = logging.getLogger(__name__)

#: The key of the ticket in the metadata of a call.
TICKET = "fedgsp-ticket-bin"
#: The key of a number that a node draws when its process starts: by it the top server tells a node that connects again
#: from another process with the same certificate.
PROCESS = "fedgsp-process"
#: The key of what a node asks a manager, and of the answer: it shows that the manager is one of the run.
QUESTION, ANSWER = "fedgsp-question", "fedgsp-answer-bin"
#: Most characters of the two texts that a caller says.
_MOST_SAID = 64
#: How long a revoked caller may take to send the message that it is sending, in seconds.
_LAST_MESSAGE_S = 1.0
#: What a refused stranger is told; the log of this process has the reason.
REFUSED = "this process does not do that for the caller"


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may make a call: processes of these roles, with a ticket of this verb where the server asks for one."""

    verb: Verb
    roles: frozenset[Role]


_NODES = frozenset({Role.NODE, Role.WORKER})
_SERVERS = frozenset({Role.TOP_SERVER, Role.MANAGER})
#: Path of an RPC -> its rule. A call that is not in this table is refused. A certificate of the top server counts for
#: every role, because the managers that it starts run with it.
RULES = {
    "/fedgsp.v1.MembershipService/Join": Rule(Verb.JOIN, _NODES),
    "/fedgsp.v1.CheckService/Check": Rule(Verb.CHECK, _NODES),
    "/fedgsp.v1.HostingService/Host": Rule(Verb.JOIN, frozenset({Role.WORKER})),
    "/fedgsp.v1.OrderService/Attach": Rule(Verb.ATTACH, _NODES),
    "/fedgsp.v1.GroupService/RunGroup": Rule(Verb.LEAD, frozenset({Role.TOP_SERVER})),
    "/fedgsp.v1.GroupService/Forget": Rule(Verb.LEAD, frozenset({Role.TOP_SERVER})),
    "/fedgsp.v1.GroupService/Revoke": Rule(Verb.LEAD, frozenset({Role.TOP_SERVER})),
    "/fedgsp.v1.EnrolmentService/Enrol": Rule(Verb.ENROL, frozenset({Role.INVITED})),
    "/fedgsp.v1.EnrolmentService/Renew": Rule(Verb.RENEW, frozenset({Role.NODE})),
    "/fedgsp.v1.ModelService/Fetch": Rule(Verb.FETCH, _NODES | _SERVERS),
    "/fedgsp.v1.ModelService/Upload": Rule(Verb.UPLOAD, _NODES),
    "/fedgsp.v1.GroupingService/Assign": Rule(Verb.ASK, frozenset({Role.TOP_SERVER})),
}


@dataclass(frozen=True, slots=True)
class Caller:
    """The process that makes the current call.

    `proven` is who it is by its certificate, None without TLS. `enrolment` is that of its certificate, empty for
    certificates that no top server issued. `certificate` is its own, and those between it and the CA, in PEM.
    `address` is where its connection comes from. `process` is what it says of its process, empty if nothing, and
    `question` is what it asks this process, so that it shows who it is.
    """

    proven: Identity | None
    ticket: Ticket | None
    enrolment: str = ""
    certificate: bytes = b""
    address: str = ""
    process: str = ""
    question: str = ""

    @property
    def asks(self) -> str:
        """The thing that its ticket is for; empty without a ticket."""
        return self.ticket.thing if self.ticket is not None else ""

    @property
    def reader(self) -> Identity | None:
        """Who it is by its ticket; None without a ticket."""
        return self.ticket.reader if self.ticket is not None else None

    def may(self, thing: str) -> bool:
        """Whether its ticket is for this thing."""
        return self.asks == thing != ""

    def is_node(self, name: str) -> bool:
        """Whether it is the node of this name, as far as that can be known."""
        node = Identity(Role.NODE, name)
        return (self.proven is None or self.proven.speaks_for(node)) and (
            self.ticket is None or self.ticket.reader == node
        )


@dataclass(frozen=True, slots=True)
class Denied:
    """A call that is refused: `why`, for the log, and what its caller is told."""

    why: str
    told: str = REFUSED
    #: Who makes it, if its certificate was revoked.
    revoked: Caller | None = None


#: A caller of whom nothing is known.
NOBODY = Caller(None, None)
_caller: ContextVar[Caller] = ContextVar("caller")


def caller() -> Caller:
    """The process that makes the call that is being served."""
    return _caller.get()


def proven() -> Identity | None:
    """Who the process that makes this call is by its certificate; None if it has shown none."""
    found = _caller.get(None)
    return found.proven if found is not None else None


def shown(ticket: bytes, process: str = "", question: str = "") -> tuple[tuple[str, bytes | str], ...]:
    """The metadata of a call that shows a ticket, names the process that makes it, and asks who serves it."""
    said: dict[str, bytes | str] = {TICKET: ticket, PROCESS: process, QUESTION: question}
    return tuple((name, value) for name, value in said.items() if value)


class AccessControl:
    """The table, with the doors of one process.

    `doors` has the verbs that this process serves. The door of a verb checks its tickets. For a verb of
    `without_ticket` no ticket is needed, but a good one is read. Callers whose enrolment is `revoked` are refused.
    """

    def __init__(
        self,
        doors: Mapping[Verb, Door],
        tls: bool,
        revoked: Revocations | None = None,
        without_ticket: Collection[Verb] = (),
        refused: Callable[[str, str, int, str], None] = lambda *_: None,
        came_back: Callable[[Caller], None] = lambda _: None,
    ) -> None:
        """`refused` gets method, peer, number and reason of refusal 1, 10, 100, ... of each kind.

        `came_back` gets each revoked node that tries to join.
        """
        self._doors = doors
        self._tls = tls
        self.revoked = revoked or Revocations()
        self._without_ticket = without_ticket
        self.refused = refused
        self.came_back = came_back

    def admit(self, method: str, context: grpc.aio.ServicerContext, ca: bytes = b"") -> Caller | Denied:
        """The caller, or why the call is refused. With TLS, `ca` is the CA (PEM) of this process."""
        rule = RULES.get(method)
        if rule is None or rule.verb not in self._doors:
            return Denied("no caller may do that here")
        proven, enrolment, certificate = None, "", b""
        if self._tls:
            own, others = _certificates(context)
            uris = uris_in(own)  # gRPC's own list of them cuts each at a NUL byte
            proven, enrolment = identity_in(uris), enrolment_in(uris)
            if proven is None:
                return Denied("its certificate names no process of a federation (URI:fedgsp://...)")
            if proven.role not in (*rule.roles, Role.TOP_SERVER):
                return Denied(f"{proven} may not do that")
            try:
                certificate = path_to_ca(own, others, ca)
            except ValueError as error:
                return Denied(f"the certificate of {proven} is not good: {error}")
        said = dict(context.invocation_metadata() or ())
        ticket = self._doors[rule.verb].read(said.get(TICKET, b""))
        found = Caller(
            proven,
            None,
            enrolment,
            certificate,
            address=unquote(context.peer().partition(":")[2]),  # gRPC's name for a peer is `ipv6:%5B::1%5D:7000`
            process=str(said.get(PROCESS, ""))[:_MOST_SAID],
            question=str(said.get(QUESTION, ""))[:_MOST_SAID],
        )
        # The registry tells a guest why its invitation is not good any more.
        if enrolment in self.revoked and rule.verb is not Verb.ENROL:
            return Denied(
                f"{proven}: {REASON}", REASON, found if rule.verb is Verb.JOIN else None
            )  # it was no stranger
        if ticket is None or ticket.verb is not rule.verb:
            if rule.verb in self._without_ticket:
                return found
            return Denied(f"{proven or 'it'} shows no ticket that is good here")
        if proven is not None and not proven.speaks_for(ticket.reader):
            return Denied(f"{proven} shows a ticket of {ticket.reader}")
        return replace(found, ticket=ticket)


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls before their messages are read, unless `access` admits the caller."""

    def __init__(self, access: AccessControl, ca: Callable[[], bytes] = bytes) -> None:
        """`ca` is the CA (PEM) of this process as it is now; empty without TLS."""
        self._access, self._ca = access, ca
        self._refused: Counter[tuple[str, str]] = Counter()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The handler of a call, behind the check."""
        handler = await continuation(handler_call_details)
        return handler and around(handler, functools.partial(self._admitted, handler_call_details.method))

    @asynccontextmanager
    async def _admitted(self, method: str, request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        """The body is the call with its request, if the caller is admitted, for as long as its certificate is good."""
        admitted = self._access.admit(method, context, self._ca())
        if isinstance(admitted, Denied):
            self._tell(method, admitted.why, context.peer())
            if admitted.revoked is not None:
                self._access.came_back(admitted.revoked)
            if admitted.told != REFUSED and hasattr(request, "__anext__"):
                # gRPC would report an internal error, and not the reason, to a caller that is still sending.
                with contextlib.suppress(TimeoutError):
                    await within(_LAST_MESSAGE_S, anext(request, None))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, admitted.told)
        else:
            _caller.set(admitted)
            async with told(context):
                with self._access.revoked.ends(admitted.enrolment):  # and the call with it
                    yield request

    def _tell(self, method: str, why: str, peer: str) -> None:
        """Logs the first refusal of a kind, the tenth, the hundredth, ...: strangers must not fill the log."""
        self._refused[method, why] += 1
        number = self._refused[method, why]
        if is_told(number):
            logger.warning("refused %s from %s (%d times so far): %s", method, peer, number, why)
            self._access.refused(method, peer, number, why)


def _certificates(context: grpc.aio.ServicerContext) -> tuple[bytes, bytes]:
    """The certificate whose key the caller has, and the others that it sent, in PEM.

    The caller may send anybody's certificate among the others, and ones that it has made up. Only the first says who
    it is, and of the others only those count that lead from it to the CA (`path_to_ca`).
    """
    peer = context.auth_context()
    own: bytes = next(iter(peer.get("x509_pem_cert", ())), b"")
    sent: bytes = b"".join(peer.get("x509_pem_cert_chain", ()))
    return own, sent.replace(own, b"")  # other versions of gRPC list its own there too
