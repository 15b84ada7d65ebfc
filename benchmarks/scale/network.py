"""Machines as network namespaces, each behind a link of its own to one switch: needs Linux and root."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator

PREFIX = "fedgsp-scale-"
NETWORK = "10.98.0."
#: The machine of the top server.
HUB = 0
#: What a link lets pass at once, and how long packets may wait for it.
_BURST, _LATENCY = "512kb", "100ms"
#: The device of a machine.
_UPLINK = "uplink"
#: The networks of this process: Linux removes the devices of a network some time after its namespaces.
_networks = itertools.count()


def why_not() -> str:
    """Why namespaces cannot be had here; empty if they can."""
    if os.geteuid() != 0:
        return "needs root"
    return "" if shutil.which("ip") and shutil.which("tc") else "needs ip and tc (iproute2)"


def namespace(machine: int, tag: int) -> str:
    """The name of the namespace of a machine."""
    return f"{PREFIX}{tag}-{machine}"


def address(machine: int) -> str:
    """The address of a machine."""
    return f"{NETWORK}{machine + 1}"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def switched(machines: int, mbit: float, hub_mbit: float = 0.0) -> Iterator[int]:
    """A network of the hub and so many machines, each with a link of so many Mbit/s each way; yields its tag.

    `hub_mbit`: the rate of the link of the hub, if it is another one.
    """
    tag = 100 * os.getpid() + next(_networks) % 100
    switch = f"fs{tag % 10_000_000}"
    queue = ("burst", _BURST, "latency", _LATENCY)
    with contextlib.ExitStack() as undo:

        def later(*command: str) -> None:
            undo.callback(lambda: subprocess.run(command, check=False, stderr=subprocess.DEVNULL))

        later("ip", "link", "delete", switch)
        _run("ip", "link", "add", switch, "type", "bridge")
        _run("ip", "link", "set", switch, "up")
        for machine in range(machines + 1):
            name, outside = namespace(machine, tag), f"{switch}p{machine}"
            rate = hub_mbit if machine == HUB and hub_mbit else mbit
            limit = ("root", "tbf", "rate", f"{rate}mbit", *queue)
            later("ip", "netns", "delete", name)
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", outside, "type", "veth", "peer", "name", _UPLINK, "netns", name)
            _run("ip", "link", "set", outside, "master", switch, "up")
            _run("ip", "-n", name, "address", "add", f"{address(machine)}/24", "dev", _UPLINK)
            _run("ip", "-n", name, "link", "set", "dev", _UPLINK, "up")
            _run("ip", "-n", name, "link", "set", "dev", "lo", "up")
            _run("tc", "qdisc", "add", "dev", outside, *limit)
            _run("tc", "-n", name, "qdisc", "add", "dev", _UPLINK, *limit)
        yield tag
