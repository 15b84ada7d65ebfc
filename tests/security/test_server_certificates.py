"""A server is who its subjectAltName says; the common name, which its holder may have chosen, counts for nothing."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc.aio
import pytest
from cryptography import x509

from fedgsp.connections.addresses import split_address
from fedgsp.connections.channels import start_server
from fedgsp.errors import ConfigError, PeerError
from fedgsp.identity import TOP_SERVER, Identity, Role
from fedgsp.security.tls import Tls, TlsFiles, load
from fedgsp.security.tls_probe import credentials, probe
from tests.support.callers import OPEN
from tests.support.certificates import Authority, unchecked

HOST = "127.0.0.1"
URI = x509.UniformResourceIdentifier
#: A certificate that somebody got for a node -> its common name, and the subjectAltName; None: it has none.
FALSE: dict[str, tuple[str, Sequence[x509.GeneralName] | None]] = {
    "no subjectAltName": (HOST, None),
    "the identity of a node": (HOST, [URI("fedgsp://node/hospital-a")]),
    "a mail address": (HOST, [x509.RFC822Name("a@example.org")]),
    "an address as a DNS name": ("x", [x509.DNSName(HOST)]),
    "another address": (HOST, [x509.IPAddress(ipaddress.ip_address("10.0.0.1"))]),
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def client(authority: Authority) -> Tls:
    return unchecked(authority.issue("client"))


@contextlib.asynccontextmanager
async def serving(files: TlsFiles) -> AsyncIterator[str]:
    server, address = await start_server(f"{HOST}:0", [], OPEN, unchecked(files))
    try:
        yield address
    finally:
        await server.stop(None)


async def takes(address: str, trusted: grpc.ChannelCredentials) -> bool:
    """Whether a channel of gRPC completes its handshake with a server."""
    async with grpc.aio.secure_channel(address, trusted) as channel:
        while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                return False
            await channel.wait_for_state_change(state)
        return True


@pytest.mark.parametrize("wrong", FALSE)
async def test_a_false_server_that_grpc_alone_would_take_is_refused(
    wrong: str, authority: Authority, client: Tls
) -> None:
    common_name, names = FALSE[wrong]
    async with serving(
        authority.issue("false", hosts=(), common_name=common_name, names=names, identity=None)
    ) as address:
        assert await takes(address, grpc.ssl_channel_credentials(client.ca, client.key, client.cert))
        with pytest.raises(PeerError, match=rf"server at {address} is refused: .*{HOST}") as caught:
            await probe(address, client)
        assert "its common name does not count" in caught.value.remedy


@pytest.mark.parametrize("name", ["localhost", "top.example.org"])
def test_a_process_does_not_start_with_a_common_name_for_its_host(name: str, authority: Authority) -> None:
    tls = load(authority.issue("own", hosts=(), common_name=name, names=None))
    assert tls is not None
    with pytest.raises(ConfigError, match=f"does not cover {name}"):
        tls.check_covers(name, "where it is")


async def test_the_probe_tells_who_a_true_server_is(authority: Authority, client: Tls) -> None:
    cases: list[tuple[list[x509.GeneralName], Identity | None]] = [
        ([URI("fedgsp://top-server")], Identity(Role.TOP_SERVER)),
        ([URI("fedgsp://node/hospital-a"), URI("spiffe://x/y")], Identity(Role.NODE, "hospital-a")),
        ([URI("fedgsp://node/a"), URI("fedgsp://top-server")], None),  # two identities are none
        ([], None),
    ]
    for names, identity in cases:
        async with serving(authority.issue("true", names=names, identity=None)) as address:
            assert (await probe(address, client)).identity == identity


async def test_a_channel_takes_only_the_certificate_that_was_checked(authority: Authority, client: Tls) -> None:
    """As if somebody on the way let the probe pass to the true server, and kept the next connection."""
    true, other = authority.issue("true"), authority.issue("other")
    false = authority.issue("false", hosts=(), common_name=HOST, names=None)
    async with serving(true) as address:
        checked = await probe(address, client)
        assert await takes(address, credentials(client, checked))
    for files in (false, other):
        async with serving(files) as address:
            assert not await takes(address, credentials(client, checked))


async def test_the_certificate_of_the_ca_is_no_certificate_of_a_server(tmp_path: Path, client: Tls) -> None:
    """A channel that trusted it would trust all certificates of the CA."""
    authority = Authority(tmp_path, "self", hosts=(HOST,))
    trusting = Tls(client.files, authority.ca.read_bytes(), client.cert, client.key)
    server = grpc.aio.server()
    port = server.add_secure_port(f"{HOST}:0", grpc.ssl_server_credentials([authority.own]))
    await server.start()
    with pytest.raises(PeerError, match="shows the certificate of a CA"):
        await probe(f"{HOST}:{port}", trusting)
    await server.stop(None)


async def test_strangers_silence_and_servers_without_tls_are_told_apart(
    tmp_path: Path, authority: Authority, client: Tls
) -> None:
    async with serving(Authority(tmp_path, "other").issue("server")) as address:
        with pytest.raises(PeerError, match="is refused"):
            await probe(address, client)
    plain, at = await start_server(f"{HOST}:0", [], OPEN)
    with pytest.raises(OSError, match=r"."):
        await probe(at, client)
    await plain.stop(None)
    with pytest.raises(ConnectionRefusedError):
        await probe(at, client)

    with socket.socket() as silent:
        silent.bind((HOST, 0))
        silent.listen()  # the kernel takes the connection, and nobody says anything
        with pytest.raises(TimeoutError):
            await probe(f"{HOST}:{silent.getsockname()[1]}", client, timeout_s=0.05)


async def test_a_wildcard_stands_for_this_machine_as_in_channels(authority: Authority, client: Tls) -> None:
    async with serving(authority.issue("true")) as address:
        found = await probe(f"0.0.0.0:{split_address(address)[1]}", client)
        assert found.identity == TOP_SERVER
