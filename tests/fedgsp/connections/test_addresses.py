from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.connections.addresses import is_near, is_wildcard, resolve, split_address
from fedgsp.errors import ConfigError


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:7000", "127.0.0.1", 7000),
        ("localhost:0", "localhost", 0),
        ("node-1.example.org:65535", "node-1.example.org", 65535),
        ("[::1]:7000", "[::1]", 7000),
        ("[fe80::1%eth0]:7000", "[fe80::1%eth0]", 7000),
        ("[::ffff:10.0.0.1]:7000", "[::ffff:10.0.0.1]", 7000),
        ("*:80", "*", 80),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)


@pytest.mark.parametrize(
    "address",
    [
        "",
        ":",
        "localhost",
        ":7000",
        "localhost:",
        "localhost:http",
        "localhost:-1",
        "localhost:65536",
        "localhost:+80",
        "localhost: 80",
        "localhost:80 ",
        "localhost:80\n",
        "local host:80",
        "localhost:²",
        "localhost:٣",
        "localhost:" + "1" * 5000,
        "::1:7000",
        "[::1:7000",
        "::1]:7000",
        "[]:7000",
        "[::1]",
        "http://localhost:80",
        "localhost:80/path",
        "host/path:80",
    ],
)
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address") as caught:
        split_address(address)
    assert "127.0.0.1:7000" in caught.value.remedy


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_mistake_of_the_user(address: str) -> None:
    try:
        host, port = split_address(address)
    except ConfigError:
        return
    assert f"{host}:{port:0{len(address.rpartition(':')[2])}}" == address


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[::0]", "[0:0:0:0:0:0:0:0]", "*"])
def test_a_wildcard_means_the_host_that_was_reached(host: str) -> None:
    assert is_wildcard(host)
    assert resolve(f"{host}:7000", "10.1.2.3") == "10.1.2.3:7000"
    assert resolve(f"{host}:7000", "[fd00::1]") == "[fd00::1]:7000"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost", "node-1", "0.0.0.1"])
def test_any_other_host_is_dialled_as_it_is(host: str) -> None:
    assert not is_wildcard(host)
    assert resolve(f"{host}:7000", "10.1.2.3") == f"{host}:7000"


@pytest.mark.parametrize(
    ("host", "near"),
    [("127.0.0.1", True), ("[::1]", True), ("localhost", True), ("10.0.0.1", False), ("0.0.0.0", False), ("*", False)],
)
def test_only_this_machine_is_near(host: str, near: bool) -> None:
    assert is_near(host) is near
