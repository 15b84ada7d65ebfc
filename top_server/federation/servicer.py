"""Gives certificates to invited nodes and to enrolled ones. The caller's certificate says for whom."""

import asyncio
import logging
from collections.abc import Callable

import grpc.aio

from fedgsp.connections.channels import refuse
from fedgsp.errors import UserError
from fedgsp.identity import Role
from fedgsp.messages import Failure, FailureCode
from fedgsp.security.access import caller
from fedgsp.to_the_end import looked_at
from fedgsp.v1 import enrolment_pb2, enrolment_pb2_grpc
from top_server.federation.authority import PublicKey, public_key_in
from top_server.federation.enrolments import Enrolments
from top_server.federation.registry import NotAllowedError

logger = logging.getLogger(__name__)

#: Name of the node, its enrolment, its key -> its certificate in DER.
Issue = Callable[[str, str, PublicKey], bytes]


class EnrolmentServicer(enrolment_pb2_grpc.EnrolmentServiceServicer):
    """Serves the enrolments of one federation."""

    def __init__(self, enrolments: Enrolments) -> None:
        self._enrolments = enrolments

    def add_to(self, server: grpc.aio.Server) -> None:
        """Adds this service to a server."""
        enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server(self, server)

    async def Enrol(  # noqa: N802
        self, request: enrolment_pb2.CertificateRequest, context: grpc.aio.ServicerContext
    ) -> enrolment_pb2.Certificate:
        """Exchanges an invitation for a certificate."""
        return await self._answer(request, context, Role.INVITED, self._enrolments.enrol)

    async def Renew(  # noqa: N802
        self, request: enrolment_pb2.CertificateRequest, context: grpc.aio.ServicerContext
    ) -> enrolment_pb2.Certificate:
        """Gives an enrolled node a new certificate."""
        return await self._answer(request, context, Role.NODE, self._enrolments.renew)

    async def _answer(
        self,
        request: enrolment_pb2.CertificateRequest,
        context: grpc.aio.ServicerContext,
        role: Role,
        issue: Issue,
    ) -> enrolment_pb2.Certificate:
        # A caller that hangs up stops neither the issue nor its record.
        issued = await asyncio.shield(looked_at(self._issued(request.request, role, issue)))
        if isinstance(issued, bytes):
            return enrolment_pb2.Certificate(certificate=issued)
        await refuse(context, *issued)

    async def _issued(self, request: bytes, role: Role, issue: Issue) -> bytes | tuple[grpc.StatusCode, str]:
        """The certificate of the caller, which is recorded; or why it gets none."""
        who = caller()
        if who.proven is None or who.proven.role is not role:  # the top server, whose certificate counts for all roles
            return grpc.StatusCode.PERMISSION_DENIED, f"this is for the certificate of a node: {role}"
        name = who.proven.name
        try:
            key = public_key_in(request)
            certificate = await asyncio.to_thread(issue, name, who.enrolment, key)
        except ValueError as error:
            return grpc.StatusCode.INVALID_ARGUMENT, str(error)
        except NotAllowedError as error:
            self._enrolments.note_refusal(name, Failure(FailureCode.NOT_ALLOWED, str(error)))
            return grpc.StatusCode.PERMISSION_DENIED, str(error)
        except UserError as error:
            logger.error("node=%s gets no certificate: %s", name, error)
            return grpc.StatusCode.UNAVAILABLE, "the top server cannot issue certificates now"
        self._enrolments.note(role, name, certificate)
        return certificate
