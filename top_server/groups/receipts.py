"""Verifies the receipts of a group's members once more, and notes in the audit log what the group did.

The manager of the group has verified them, too. It runs on the machine of the top server; nevertheless its word is not
enough to put a training into the record that its node did not sign.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from fedgsp.identity import node
from fedgsp.messages import (
    Discriminated,
    Failure,
    FailureCode,
    GroupResult,
    Member,
    MemberDone,
    MemberSkipped,
    ModelRef,
    RunGroupRequest,
    Served,
    Trained,
)
from fedgsp.programs import PROGRAMS
from fedgsp.security.receipts import Statement
from fedgsp.security.signing import fingerprint, holds, identity_of
from fedgsp.visible import visible
from top_server.record.audit import Fetches

if TYPE_CHECKING:
    from top_server.run import RunContext


class GroupAudit:
    """The lines of one call of a group manager."""

    def __init__(self, context: RunContext, request: RunGroupRequest, manager: str) -> None:
        self._context = context
        self._request = request
        self._manager = manager
        self._members = {member.client: member for member in request.members}
        #: Node -> the certificate of `Member.certificate_digest`. A node may leave before its result is reported.
        self._certificates = {member.node: context.membership.certificate(member.node) for member in request.members}
        self._makes = PROGRAMS[request.program].members_make
        self._fetches = Fetches(context.audit, f"manager {manager}")
        self._chained = PROGRAMS[request.program].chained
        #: Of a chain, (client, model, digest) of its hops, and otherwise the digests of what was made.
        self._hops = [_hop(hop.member.client, hop.model) for hop in request.finished if hop.member is not None]
        self._made: set[str] = set()
        #: Clients that answered without making a model.
        self._answered: list[int] = []

    def ordered(self) -> None:
        """The request goes to the manager."""
        request, start = self._request, self._request.start
        self._context.audit.note(
            "ordered",
            run=request.run_id,
            round=request.round,
            group=request.group,
            serial=request.serial,
            program=request.program,
            chained=PROGRAMS[request.program].chained,
            manager=self._manager,
            # The manager makes a ticket for each of these nodes, for the models that its orders name.
            members=[[member.client, member.node] for member in request.members],
            finished=len(request.finished),
            start=[start.id, start.digest.hex()] if start is not None else None,
            own_starts=[
                [member.client, member.start.ref.id, member.start.ref.digest.hex()]
                for member in request.members
                if member.start is not None and member.start.ref is not None
            ],
            reveal=request.reveal.view if request.reveal is not None else None,
        )

    def done(self, done: MemberDone) -> Failure | None:
        """A member is done; the failure if it did not sign what it is said to have made."""
        made = done.result
        if not isinstance(made, Trained | Discriminated) or made.ref is None or not made.ref.id:
            if self._makes:
                return self._refused(done, "without a model")
            self._answered.append(done.client)
            return None
        member = self._members[done.client]
        if isinstance(made, Trained) and made.samples > member.samples:
            return self._refused(done, f"on {made.samples} samples, and it has {member.samples}")
        signs = bool(member.certificate_digest)
        if done.key is None:
            # A manager sends on what a node holds, or the node is one of a test. A training has an order.
            return self._refused(done, "without the order") if signs and self._makes else None
        statement = Statement.of(done.key, done.client, member.node, made, done.update_digest)
        asked = (self._request.run_id, self._request.round, self._request.group, self._request.serial)
        if (statement.run, statement.round, statement.group, statement.serial) != asked:
            return self._refused(done, "for another order")
        if isinstance(made, Trained) and made.update is not None and made.update.digest != done.update_digest:
            return self._refused(done, "with another update")
        certificate = done.certificate or self._certificates[member.node]
        if done.certificate and (why := self._why_not(member, done.certificate)):
            return self._refused(done, f"with a certificate that is not good: {why}")
        if signs and not (statement.digest and holds(certificate, statement.text, done.receipt)):
            return self._refused(done, "which the node has not signed")
        if not self._may_begin(statement, signs):
            return self._refused(done, "that began with another model than it was to begin with")
        if self._chained:
            self._hops[statement.position :] = [_hop(done.client, made.ref)]
        self._made.add(statement.digest)
        source = made.source
        self._context.audit.note(
            "made",
            statement=dataclasses.asdict(statement),
            receipt=done.receipt.hex() if signs else None,
            certificate=fingerprint(certificate) if signs else None,
            via=[source.kind.name.lower(), visible(source.name)] if source is not None else None,
            bytes=made.bytes,
        )
        return None

    def skipped(self, skipped: MemberSkipped) -> None:
        """A member is skipped."""
        failure = skipped.failure
        self._hops = [hop for hop in self._hops if hop[0] != skipped.client]
        self._context.audit.note(
            "skipped",
            **self._where(),
            client=skipped.client,
            code=failure.code.name if failure is not None else None,
            reason=visible(str(failure)),
        )

    def served(self, served: Served) -> None:
        """The manager gave a model to another process."""
        self._fetches.note(served.model_id, served.reader, served.proven or "unproven", served.bytes)

    def too_many(self, result: GroupResult | Failure) -> Failure | None:
        """The failure in place of a result that would count for more samples than the members have told."""
        told = {member.client: member.samples for member in self._request.members}
        for hop in self._request.finished:
            if (member := hop.member) is not None:
                told[member.client] = max(member.samples, told.get(member.client, 0))
        most = sum(told.values())
        if isinstance(result, Failure) or result.samples <= most:
            return None
        why = f"manager {self._manager} tells of {result.samples} samples of members that have {most}"
        return Failure(FailureCode.BAD_RECEIPT, why)

    def ended(self, result: GroupResult | Failure) -> None:
        """The call has ended."""
        ref = result.ref if isinstance(result, GroupResult) else None
        self._context.audit.note(
            "ended",
            **self._where(),
            answered=self._answered,
            result=[ref.id, ref.digest.hex()] if ref is not None and ref.id else None,
            failure=visible(str(result)) if isinstance(result, Failure) else None,
        )

    def _where(self) -> dict[str, int]:
        return {"round": self._request.round, "group": self._request.group, "serial": self._request.serial}

    def _may_begin(self, said: Statement, signs: bool) -> bool:
        """Whether a statement names a start that `top_server.audit` takes: a line that it refuses cannot be undone."""
        begins = not self._chained or said.position == 0
        if not begins and said.position > len(self._hops):
            return False
        if not said.start_digest:
            return True
        own = self._members[said.client].start
        ref = self._request.start if own is None else own.ref
        before = _hop(said.client, ref) if begins else self._hops[said.position - 1]
        if said.start == before[1] != "":
            return before[2] in ("", said.start_digest)  # a start without a digest is computed by the manager
        # A program of another package may let a member begin with what another one has made.
        return begins and (not signs or (said.start != "" and said.start_digest in self._made))

    def _why_not(self, member: Member, certificate: bytes) -> str:
        named = identity_of(certificate)
        if named is None or not named.speaks_for(node(member.node)):
            return f"it is that of {named or 'nobody'}"
        shown = member.node, fingerprint(certificate)
        if shown in self._context.renewed:
            return ""
        if why := self._context.why_not_trusted(certificate):
            return why
        self._context.renewed.add(shown)
        text = certificate.decode("ascii", "replace")
        self._context.audit.note("renewed", node=member.node, caller=str(named), certificate=text)
        return ""

    def _refused(self, done: MemberDone, what: str) -> Failure:
        failure = Failure(
            FailureCode.BAD_RECEIPT,
            f"manager {self._manager} tells of a result of client {done.client} {what}",
        )
        self._context.audit.note("invented", **self._where(), client=done.client, reason=visible(failure.detail))
        return failure


def _hop(client: int, ref: ModelRef | None) -> tuple[int, str, str]:
    return client, ref.id if ref is not None else "", ref.digest.hex() if ref is not None else ""
