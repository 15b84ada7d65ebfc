"""Checks the certificate of a server before a channel dials it: gRPC's own check of the host name is too lenient.

gRPC takes the common name of a certificate without DNS names for a host name, and a DNS name for an IP address
(tests/security/test_server_certificates.py shows both). So the holder of any certificate of the CA could choose a
common name and stand in for a server. A handshake by Python's ssl, with common names switched off, refuses them.
Somebody on the way could let that handshake pass and catch the next one; so the channel trusts, in place of the CA,
only the certificate that was checked.
"""

import asyncio
import contextlib
import ssl
from dataclasses import dataclass

import grpc

from fedgsp.connections.addresses import loopback, split_address
from fedgsp.connections.liveness import MOST_DIAL_S
from fedgsp.connections.proxy import Proxy, open_connection
from fedgsp.connections.unreached import why_unreached
from fedgsp.errors import PeerError
from fedgsp.identity import Identity, host_of_placed, identity_in
from fedgsp.security.tls import NOT_OF_CA, TOKEN, Tls, handshake_failure, meaning_of, uris_of
from fedgsp.within import within

#: What a channel is opened with: credentials, and options of gRPC beside them.
Trusted = tuple[grpc.ChannelCredentials, list[tuple[str, str]]]

#: OpenSSL's codes for a certificate that is not for the host name or the address that was dialled.
_NOT_OF_HOST = (62, 64)
#: Source of this process's files -> what it means that the server's certificate is of another CA, and what to do.
_OF_CA = {
    TOKEN: (
        "the top server at {address} did not issue this invitation",
        "check --top-server, and that the token is for that top server",
    ),
    "--identity": (
        "the top server at {address} did not issue the certificate in --identity: its certificate is of another CA",
        "check --top-server and --identity; if the federation was made anew, enrol with a new invitation",
    ),
}


class NoServerError(PeerError):
    """No server answers at the address, or it does not speak TLS."""


class WrongHostError(PeerError):
    """The certificate of a server is not one for the host that was dialled."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server whose certificate was checked."""

    #: Who it is according to its certificate; None if the certificate names no identity.
    identity: Identity | None
    #: The certificate, in PEM.
    certificate: bytes


async def trusted(address: str, tls: Tls, server: Identity, proxy: Proxy | None = None) -> Trusted:
    """Credentials of a channel to the process `server`, which take the certificate that it has now, and no other.

    A worker runs where a scheduler has put it, and so may a manager. Their certificates have a host name of their own
    in place of hosts: see `host_of_placed`.

    Raises PeerError if there is no server, or if its certificate is not one of this host, or not of this process.
    """
    options: list[tuple[str, str]] = []
    try:
        try:
            found = await probe(address, tls, proxy=proxy)
        except WrongHostError as error:
            if not (name := host_of_placed(server)):
                raise
            try:
                found = await probe(address, tls, proxy=proxy, name=name)
            except WrongHostError:
                raise error from None
            options = [("grpc.ssl_target_name_override", name)]
    except OSError as error:
        said = f"{type(error).__name__}: {error}"
        reason = handshake_failure(str(error)) or why_unreached(said, address) or said
        raise NoServerError(f"no TLS connection to {address}: {reason}", "start it, or correct its address") from None
    if found.identity is None or not found.identity.speaks_for(server):
        raise PeerError(
            f"the certificate of the server at {address} is that of {found.identity or 'nobody'}, not of {server}",
            f"issue it with URI:{server.uri} in its subjectAltName",
        )
    return credentials(tls, found), options


def _refused(address: str, name: str, source: str, error: ssl.SSLCertVerificationError) -> PeerError:
    """The error about a certificate that is not one of this host, or of this CA, or that is not valid now."""
    meaning = meaning_of(error.verify_message) or error.verify_message
    if meaning == NOT_OF_CA and source in _OF_CA:
        what, remedy = _OF_CA[source]
        return PeerError(what.format(address=address), remedy)
    not_of_host = error.verify_code in _NOT_OF_HOST
    return (WrongHostError if not_of_host else PeerError)(
        f"the certificate of the server at {address} is refused: {meaning}",
        f"dial a name that it has, or add {name}: with a federation by --host {name} where it was made, otherwise"
        " in the subjectAltName of a new one; its common name does not count"
        if not_of_host
        else "give both processes certificates of one CA that are good now (--tls-ca has the CA)",
    )


async def hung_up(writer: asyncio.StreamWriter, timeout_s: float = MOST_DIAL_S) -> None:
    """Closes a connection at once; waits until it is closed."""
    writer.transport.abort()
    with contextlib.suppress(OSError, TimeoutError):
        await within(timeout_s, writer.wait_closed())


async def shown(address: str, timeout_s: float = MOST_DIAL_S, proxy: Proxy | None = None) -> bytes:
    """The certificate (DER) that the server at host:port shows, whatever it is: for a report alone, not to trust it.

    Nothing is shown to the server. Raises OSError if no handshake came about, and PeerError if the proxy opened no
    connection.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    writer = await open_connection(proxy, address, timeout_s, context)
    der: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    await hung_up(writer)
    return der


async def probe(
    address: str, tls: Tls, timeout_s: float = MOST_DIAL_S, proxy: Proxy | None = None, name: str = ""
) -> Server:
    """Makes one TLS handshake with the server at host:port, and closes the connection.

    Raises WrongHostError if its certificate is not one for this host, or for the host `name` if that is given;
    PeerError if it cannot be trusted otherwise, or if the proxy opens no connection; OSError (also TimeoutError, after
    `timeout_s` seconds) if no handshake came about.
    """
    host = loopback(split_address(address)[0]).strip("[]")
    name = name or host.partition("%")[0]  # certificates name an IPv6 address without its zone
    context = tls.context(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    try:
        writer = await open_connection(proxy, address, timeout_s, context, name)
    except ssl.SSLCertVerificationError as error:
        raise _refused(address, name, tls.files.source, error) from None
    except ValueError as error:  # a host that cannot be one
        raise OSError(str(error)) from None
    spoken = writer.get_extra_info("ssl_object")
    uris, der = uris_of(spoken), spoken.getpeercert(binary_form=True)
    await hung_up(writer, timeout_s)
    if der in context.get_ca_certs(binary_form=True):
        raise PeerError(
            f"the server at {address} shows the certificate of a CA",
            "issue a certificate of its own: a channel that trusted this one would trust all that the CA issued",
        )
    return Server(identity_in(uris), ssl.DER_cert_to_PEM_cert(der).encode())


def credentials(tls: Tls, server: Server) -> grpc.ChannelCredentials:
    """Credentials of a channel that takes this server's certificate, and no other that the CA issued."""
    return grpc.ssl_channel_credentials(server.certificate, tls.key, tls.cert)
