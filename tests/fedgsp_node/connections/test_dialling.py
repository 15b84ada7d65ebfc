from __future__ import annotations

import asyncio
import ipaddress
import re
from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp.settings.policy import UNLIMITED, Hosts, Policy, Ports
from fedgsp_node.connections import dialling
from fedgsp_node.connections.dialling import Dialling, TopServer, why_not
from fedgsp_node.policies.policy_file import policy_of

TOP = TopServer("top.example.org", 7000, frozenset({ipaddress.ip_address("192.0.2.7")}))
LOCAL = TopServer("127.0.0.1", 7000)


def allowing(*hosts: str, ports: str = "1024-65535") -> Policy:
    return Policy(hosts=Hosts(hosts), ports=Ports(ports.split(",")))


@pytest.mark.parametrize(
    "address",
    [
        "top.example.org:7000",
        "TOP.example.org.:7101",
        "192.0.2.7:7101",
        "[::ffff:192.0.2.7]:7101",
        "0.0.0.0:7101",
        "[::]:7101",
        "*:7101",
    ],
)
def test_the_host_of_the_top_server_is_dialled_by_any_of_its_names(address: str) -> None:
    assert why_not(address, Policy(), TOP) == ""


#: What must not be reached, in every way to write it: this machine, this link, the cloud's metadata, other machines.
INTERNAL = [
    "127.0.0.1:6379",
    "127.1.2.3:6379",
    "localhost:6379",
    "LOCALHOST.:6379",
    "db.localhost:6379",
    "[::1]:6379",
    "[::ffff:127.0.0.1]:6379",
    "[::ffff:7f00:1]:6379",
    "169.254.169.254:8080",
    "[::ffff:169.254.169.254]:8080",
    "[fe80::1]:8080",
    "[fe80::1%eth0]:8080",
    "224.0.0.1:8080",
    "255.255.255.255:8080",
    "[64:ff9b::7f00:1]:8080",
]
OTHERS = ["10.0.0.5:8080", "192.168.1.1:8080", "[fd00:ec2::254]:8080", "198.51.100.1:8080", "db:8080", "unix:8080"]


@pytest.mark.parametrize("address", [*INTERNAL, *OTHERS])
def test_no_other_host_is_dialled_unless_it_is_listed(address: str) -> None:
    why = why_not(address, Policy(), TOP)
    assert "its owner can allow it (--allow hosts=" in why
    assert why_not(address, UNLIMITED, TOP) == ""
    remedy = re.search(r"--allow hosts=(\S+)\)$", why)
    assert remedy
    assert why_not(address, policy_of(None, {"hosts": remedy[1]}), TOP) == ""


@pytest.mark.parametrize("address", INTERNAL)
def test_wide_lists_do_not_cover_this_machine_or_this_link(address: str) -> None:
    assert why_not(address, allowing("0.0.0.0/0", "::/0", "*", "*.example.org"), TOP)


@pytest.mark.parametrize("address", OTHERS)
def test_wide_lists_cover_other_machines(address: str) -> None:
    assert why_not(address, allowing("0.0.0.0/0", "::/0", "*"), TOP) == ""


@pytest.mark.parametrize(
    ("entry", "address", "covered"),
    [
        ("10.0.0.0/8", "10.9.9.9:8080", True),
        ("10.0.0.0/8", "[::ffff:10.9.9.9]:8080", True),
        ("10.0.0.0/8", "11.0.0.1:8080", False),
        ("10.0.0.0/8", "10.example.org:8080", False),
        ("10.0.0.5", "10.0.0.5:8080", True),
        ("fd00::/8", "[fd00::1]:8080", True),
        ("*.example.org", "n1.example.org:8080", True),
        ("*.example.org", "N1.EXAMPLE.ORG.:8080", True),
        ("*.example.org", "example.org:8080", False),
        ("*.example.org", "n1.example.org.evil.net:8080", False),
        ("n1", "n1:8080", True),
        ("127.0.0.0/8", "127.0.0.1:8080", True),
        ("localhost", "localhost:8080", True),
        ("169.254.0.0/16", "169.254.169.254:8080", True),
        ("any", "127.0.0.1:8080", True),
    ],
)
def test_an_entry_covers_what_it_says(entry: str, address: str, covered: bool) -> None:
    assert (why_not(address, allowing(entry), TOP) == "") == covered


def test_loopback_is_dialled_if_the_top_server_was_given_by_it() -> None:
    for address in ("127.0.0.1:7101", "localhost:7101", "[::1]:7101", "0.0.0.0:7101"):
        assert why_not(address, Policy(), LOCAL) == ""
    assert why_not("10.0.0.5:7101", Policy(), LOCAL)


def test_ports_that_are_not_listed_are_dialled_only_if_it_is_the_top_servers_own() -> None:
    assert "--allow ports=22" in why_not("top.example.org:22", Policy(), TOP)
    assert why_not("top.example.org:22", allowing(ports="22,7000-7100"), TOP) == ""
    assert why_not("top.example.org:7101", allowing(ports="22,7000-7100"), TOP)
    assert why_not("top.example.org:443", Policy(), TopServer("top.example.org", 443)) == ""
    assert why_not("n1:443", allowing("n1"), TopServer("top.example.org", 443))


@pytest.mark.parametrize(
    "address",
    [
        "unix:/run/x.sock",
        "unix-abstract:x",
        "dns:///x:1",
        "2130706433:80",
        "127.1:80",
        "0x7f.1:80",
        "[::1%]:80",
        "a b:1",
    ],
)
def test_what_is_no_host_and_port_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        why_not(address, UNLIMITED, TOP)


async def test_a_name_cannot_stand_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers for the name of the top server says that it is 127.0.0.1 as well."""

    async def answered(*_: Any, **__: Any) -> Any:
        return [(0, 0, 0, "", (ip, 0)) for ip in ("192.0.2.7", "127.0.0.1", "169.254.169.254")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", answered)
    found = Dialling(Policy(), "top.example.org:7000")
    assert found.why_not("192.0.2.7:7101")
    await found.look_up()
    assert found.why_not("192.0.2.7:7101") == ""
    for address in ("127.0.0.1:7101", "localhost:7101", "169.254.169.254:8080"):
        assert found.why_not(address)


async def test_behind_a_proxy_a_silent_name_server_holds_up_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", silent)
    monkeypatch.setattr(dialling, "LOOK_UP_BESIDE_PROXY_S", 0.0)
    found = Dialling(Policy(), "top.example.org:7000", proxied=True)
    async with asyncio.timeout(dialling.LOOK_UP_S / 2):
        await found.look_up()
    assert found.why_not("top.example.org:7101") == ""


async def test_a_name_that_nobody_knows_is_looked_up_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "LOOK_UP_S", 0.0)
    found = Dialling(Policy(), "top.invalid:7000")
    await found.look_up()
    assert found.why_not("top.invalid:7101") == ""
