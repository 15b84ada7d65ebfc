"""What a node asks a top server: a certificate for an invitation, and a fresh certificate."""

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc.aio
from cryptography import x509

from fedgsp.connections.channels import MAX_REASON, Channels, describe
from fedgsp.connections.proxy import Proxy
from fedgsp.errors import ConfigError, PeerError
from fedgsp.files import write_secret
from fedgsp.identity import TOP_SERVER, identity_in, invited, node
from fedgsp.security.certificates import Key, belongs, now, pem_of, pem_of_key, read, request_for, uris_of
from fedgsp.security.invitation import Invitation
from fedgsp.security.tls import TOKEN, Tls, in_folder
from fedgsp.v1 import enrolment_pb2, enrolment_pb2_grpc
from fedgsp.visible import visible

#: Longest wait for a certificate, in seconds.
TIMEOUT_S = 30.0


async def enrol(invitation: Invitation, key: Key, top_server: str, proxy: Proxy | None = None) -> x509.Certificate:
    """Uses an invitation: the certificate of this node, for its `key`.

    Raises ConfigError if the invitation has expired, and PeerError if the top server refuses or is not there.
    """
    end = invitation.opened.not_valid_after_utc
    ConfigError.require(end > now(), f"this invitation expired on {end:%Y-%m-%d %H:%M} UTC", "ask for a new one")
    ca = read(invitation.ca)
    with tempfile.TemporaryDirectory() as folder:
        tls = _tls(Path(folder), invitation, ca)
        async with Channels(tls, proxy=proxy) as channels:
            stub = enrolment_pb2_grpc.EnrolmentServiceStub(await channels.to(top_server, TOP_SERVER))
            return await _certificate(stub.Enrol, key, invitation.name, ca, top_server)


async def renew(tls: Tls, key: Key, name: str, top_server: str, proxy: Proxy | None = None) -> x509.Certificate:
    """A fresh certificate of this node, for its new `key`; raises PeerError."""
    async with Channels(tls, proxy=proxy) as channels:
        stub = enrolment_pb2_grpc.EnrolmentServiceStub(await channels.to(top_server, TOP_SERVER))
        ca = x509.load_pem_x509_certificate(tls.ca)
        return await _certificate(stub.Renew, key, name, ca, top_server)


async def _certificate(
    call: Callable[..., Awaitable[enrolment_pb2.Certificate]],
    key: Key,
    name: str,
    ca: x509.Certificate,
    top_server: str,
) -> x509.Certificate:
    request = enrolment_pb2.CertificateRequest(request=request_for(key))
    try:
        answer = await call(request, timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        refused = error.code() is grpc.StatusCode.PERMISSION_DENIED
        said = visible(str(error.details()))[:MAX_REASON] if refused else describe(error)
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise PeerError(
                f"the process at {top_server} gives no certificates: that port belongs to a group manager, to another"
                " program, or to a top server without --federation",
                "give --top-server the host and port at which nodes join: the top server logs `listening on ...`",
            ) from None
        raise PeerError(f"the top server gives no certificate: {said}") from None
    try:
        found = read(answer.certificate)
        found.verify_directly_issued_by(ca)
        whose = identity_in(uris_of(found))
    except Exception:  # `cryptography` has several errors
        whose = None
    PeerError.require(
        whose == node(name) and belongs(found, key),
        "the top server sent a certificate that is not for this node",
        "correct the top server",
    )
    begin, here = found.not_valid_before_utc, now()
    PeerError.require(
        begin <= here,  # otherwise this node could use neither this certificate nor, after a restart, the one before
        f"the new certificate is good from {begin:%Y-%m-%d %H:%M} UTC on, and it is {here:%Y-%m-%d %H:%M} UTC here",
        "set the clocks of this machine and of that of the top server",
    )
    return found


def _tls(folder: Path, invitation: Invitation, ca: x509.Certificate) -> Tls:
    """The credentials of an invited node, for one connection. Its certificate is good for nothing else."""
    files = in_folder(folder, "invited", TOKEN)
    certificate, key = pem_of(invitation.opened), pem_of_key(invitation.key)
    files.ca.write_bytes(pem_of(ca))
    write_secret(files.cert, certificate + key, lasting=False)
    return Tls(files, pem_of(ca), certificate, key, invited(invitation.name))
