"""The federation of a run, as its top server needs it. Without `--federation` there is nothing to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc.aio

from fedgsp.messages import Failure, FailureCode
from fedgsp.security.access import Caller
from fedgsp.security.revocation import REASON, Revocations
from fedgsp.security.tickets import Door, Verb
from fedgsp.settings.run import RunConfig
from fedgsp.settings.web import WebSettings
from top_server.managers.pool import ManagerPool
from top_server.nodes.membership import Membership
from top_server.record.audit import NO_AUDIT, Audit
from top_server.record.journal import Recorder

if TYPE_CHECKING:
    from top_server.federation.enrolments import Enrolments


class Federated:
    """What a run has of its federation, if it has one."""

    def __init__(self, config: RunConfig, membership: Membership, recorder: Recorder, audit: Audit = NO_AUDIT) -> None:
        """From now on the registry decides who may join. Raises ConfigError or DataError."""
        self._membership = membership
        self.revoked = Revocations()
        self._enrolments: Enrolments | None = None
        files = config.tls_files
        if config.federation is None or files is None:
            return
        from top_server.federation.enrolments import Enrolments  # here: other runs need no cryptography
        from top_server.federation.folder import opened

        self._enrolments = Enrolments(
            opened(config.federation), files.cert, config.hosts, self.revoked, recorder, audit, membership.note_refusal
        )
        membership.registered = self._enrolments.may_join
        membership.revoked = tuple(self._enrolments.revoked)

    @property
    def doors(self) -> Mapping[Verb, Door]:
        """The calls that it serves. They need no ticket: the caller's certificate says who it is."""
        return {} if self._enrolments is None else {Verb.ENROL: Door(), Verb.RENEW: Door()}

    def came_back(self, caller: Caller) -> None:
        """Records that a revoked node tried to join."""
        if caller.proven is not None:
            self._membership.note_refusal(caller.proven.name, Failure(FailureCode.NOT_ALLOWED, REASON), caller)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serves these calls."""
        if self._enrolments is not None:
            from top_server.federation.servicer import EnrolmentServicer

            EnrolmentServicer(self._enrolments).add_to(server)

    @asynccontextmanager
    async def followed(self, managers: ManagerPool) -> AsyncIterator[None]:
        """While the body runs, nodes that are revoked lose their place here, at managers, and at other nodes."""
        if self._enrolments is None:
            yield
            return
        await managers.revoke(self._enrolments.revoked)
        async with self._enrolments.followed(self._membership.revoke, managers.revoke):
            yield


def certify(config: RunConfig | WebSettings) -> None:
    """Gives the top server its certificate, if it has a federation; raises ConfigError or DataError."""
    files = config.tls_files
    if config.federation is not None and files is not None:
        from top_server.federation.folder import EXISTING, opened

        folder = opened(config.federation, f"{EXISTING}; if there is none, run: top-server invite NAME --clients IDS")
        folder.certify(files.cert, config.hosts)
