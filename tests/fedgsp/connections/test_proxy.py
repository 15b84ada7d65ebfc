"""Connections by way of an HTTP proxy: what it is asked, what it refuses, and where its password may stand."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from fedgsp.connections.channels import Channels
from fedgsp.connections.proxy import Proxy, proxy_of
from fedgsp.connections.unreached import why_unreached
from fedgsp.errors import ConfigError, PeerError
from fedgsp.identity import TOP_SERVER
from fedgsp.settings.proxies import PASSWORD_VARIABLE, proxy_parts
from fedgsp.settings.run import NodeSettings
from tests.fedgsp.connections.test_channels_tls import echo, said
from tests.support.certificates import HERE, Authority, unchecked
from tests.support.connect_proxy import connect_proxy
from tests.support.serving import nobody, serving

#: A host that only the proxy knows. Others take it for another machine, so that models have their own connection.
FAR = "top.example.test"
SECRET = "p:w@rd/100%"


@pytest.mark.parametrize("user", ["", "us@er"])
@pytest.mark.parametrize("secured", [True, False])
async def test_orders_and_models_go_through_the_proxy_with_and_without_tls(
    tmp_path: Path, user: str, secured: bool
) -> None:
    authority = Authority(tmp_path)
    tls = unchecked(authority.issue("server", hosts=[*HERE, FAR])) if secured else None
    own = unchecked(authority.issue("client")) if secured else None
    password = SECRET if user else ""
    async with (
        serving(echo, tls=tls) as served,
        connect_proxy(user=user, password=password, hosts={FAR: "127.0.0.1"}) as way,
        Channels(own, insecure=not secured, proxy=Proxy(way.address, user, password)) as channels,
    ):
        far = f"{FAR}:{served.address.rpartition(':')[2]}"
        for models in (False, True):
            assert await said(await channels.to(far, TOP_SERVER, models)) == b"hello"
        assert way.opened == [far] * 4  # before each channel the certificate, or the proxy itself, is looked at
        assert not way.refused


async def test_hosts_in_no_proxy_go_through_the_proxy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    async with serving(echo) as served, connect_proxy() as way:
        async with Channels(proxy=proxy_of(f"http://{way.address}", None)) as channels:
            assert await said(await channels.to(served.address, TOP_SERVER)) == b"hello"
        assert way.opened == [served.address] * 2


async def test_without_a_flag_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(echo) as served, connect_proxy() as way:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://{way.address}")
        async with Channels() as channels:
            assert await said(await channels.to(served.address, TOP_SERVER)) == b"hello"
        assert not way.opened


@pytest.mark.parametrize(
    ("status", "what", "remedy"),
    [
        (403, "does not allow connections to 127.0.0.1:9 (403 Refused)", "ask its administrators to allow CONNECT"),
        (502, "does not reach 127.0.0.1:9 (502 Refused)", "check that the top server runs"),
        (405, "opens no connections to other machines (405 Refused)", "give --proxy an HTTP proxy"),
        (418, "does not answer as an HTTP proxy does (418 Refused)", "give --proxy an HTTP proxy"),
    ],
)
async def test_what_a_proxy_refuses_is_told_with_a_remedy(status: int, what: str, remedy: str) -> None:
    async with connect_proxy(refusals={"": status}) as way, Channels(proxy=Proxy(way.address)) as channels:
        with pytest.raises(PeerError) as caught:
            await channels.to("127.0.0.1:9", TOP_SERVER)
        assert caught.value.what == f"{'the server' if status in (405, 418) else 'the proxy'} at {way.address} {what}"
        assert caught.value.remedy.startswith(remedy)


async def test_a_proxy_that_asks_for_a_password_says_whether_there_was_one() -> None:
    async with connect_proxy(user="me", password=SECRET) as way:
        with pytest.raises(
            PeerError, match=r"asks for a user and a password \(407 Refused\); give --proxy http://USER"
        ):
            await Proxy(way.address).check("127.0.0.1:9", 5)
        with pytest.raises(PeerError, match="does not accept this user and password") as caught:
            await Proxy(way.address, "me", "wrong word").check("127.0.0.1:9", 5)
        assert "wrong word" not in str(caught.value)


async def test_a_proxy_that_is_not_there_or_none_is_told() -> None:
    async with nobody() as gone:
        with pytest.raises(PeerError, match=f"the proxy cannot be reached: nothing listens at {gone.address}"):
            await Proxy(gone.address).check("127.0.0.1:9", 5)
    async with serving(echo) as grpc_server:
        with pytest.raises(PeerError, match="does not answer as an HTTP proxy does"):
            await Proxy(grpc_server.address).check("127.0.0.1:9", 5)


async def test_a_proxy_that_is_silent_is_given_up() -> None:
    given_up = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()
        given_up.set()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(PeerError, match=f"the proxy at {address} does not answer"):
            await Proxy(address).check("127.0.0.1:9", 0.2)
        await given_up.wait()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://me:secret@proxy:3128", "has a password, which others on this machine could read"),
        ("https://proxy:3128", "begins with 'https'"),
        ("proxy:3128", "begins with 'proxy'"),
        ("//proxy:3128", "has no http://"),
        ("http://proxy", "is not the address of a proxy"),
        ("http://proxy:port", "is not the address of a proxy"),
        ("http://proxy:3128/path", "is not the address of a proxy"),
        ("http://pro xy:3128", "is not an address"),
    ],
)
def test_a_wrong_proxy_is_refused_without_its_secret(url: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        proxy_parts(url)
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_password_comes_from_a_file_or_the_environment_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    found = proxy_of("http://us%40er@proxy:3128/", file)
    assert found == Proxy("proxy:3128", "us@er", SECRET)
    assert SECRET not in repr(found)
    monkeypatch.setenv(PASSWORD_VARIABLE, "another")
    assert proxy_of("http://me@proxy:3128", None) == Proxy("proxy:3128", "me", "another")
    with pytest.raises(ConfigError, match="--proxy has no user, and there is a password"):
        proxy_of("http://proxy:3128", None)
    monkeypatch.delenv(PASSWORD_VARIABLE)
    with pytest.raises(ConfigError, match="--proxy has a user, and there is no password"):
        proxy_of("http://me@proxy:3128", None)
    with pytest.raises(ConfigError, match=f"--proxy-password {tmp_path} cannot be read"):
        proxy_of("http://me@proxy:3128", tmp_path)
    with pytest.raises(ConfigError, match="--proxy-password is for a proxy, and there is none"):
        proxy_of(None, file)
    assert proxy_of(None, None) is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"proxy": "http://p:1", "peer_listen": "127.0.0.1:0"}, "--peer-listen is for a node that others can dial"),
        ({"proxy": "http://me:secret@p:1"}, "--proxy has a password"),
    ],
)
def test_settings_that_do_not_go_with_a_proxy_are_refused(given: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        NodeSettings(top_server="127.0.0.1:7000", **given).check_together()  # type: ignore[arg-type]


def test_what_grpc_says_of_a_proxy_is_told_in_plain_words() -> None:
    said = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:3128: HTTP proxy returned response"
    assert why_unreached(f"{said} code 407") == "the proxy at 10.0.0.1:3128 asks for another user or password"
    assert why_unreached(f"{said} code 503") == "the proxy at 10.0.0.1:3128 opens no connection now"
