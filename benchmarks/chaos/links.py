"""A network in which this process forwards every packet. Each end is a network namespace with a TUN device.

Packets can be delayed or lost, and links can be cut without a notice to either end. This needs Linux and root.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import random
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil

#: Prefix of names. The id of the process follows, so that namespaces of a dead process can be found.
PREFIX = "fedgsp-chaos-"
NETWORK = "10.97.0."
MTU = 9000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SYN = 2


@dataclass(slots=True)
class Links:
    """The ends by name, each with its address. The network is a star with this process in the middle."""

    delay_s: float
    loss: float
    rng: random.Random
    namespaces: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    cut: set[frozenset[str]] = field(default_factory=set)
    #: Bytes per second to and from an end; an end that is not here has no limit.
    rates: dict[str, float] = field(default_factory=dict)
    #: A middlebox forgets connections that were idle for so many seconds. Their later packets are lost.
    idle_s: float = math.inf
    moved: int = 0
    lost: int = 0
    forgotten: int = 0
    _devices: dict[str, int] = field(default_factory=dict)
    #: The network interface of each end, in its namespace.
    _interfaces: dict[str, str] = field(default_factory=dict)
    _names: dict[bytes, str] = field(default_factory=dict)
    #: How many addresses there have been.
    _numbers: int = 0
    #: When the last packet that waits at a thin link will have passed, by end and direction.
    _busy_until: dict[tuple[str, str], float] = field(default_factory=dict)
    #: When the last packet of a connection passed; infinity if the middlebox has forgotten the connection.
    _passed: dict[frozenset[bytes], float] = field(default_factory=dict)

    def command(self, end: str, command: list[str]) -> list[str]:
        """The command that runs another command at an end. Both have the same process id."""
        return ["ip", "netns", "exec", self.namespaces[end], *command]

    def links_of(self, end: str) -> set[frozenset[str]]:
        """The links between an end and all others."""
        return {frozenset((end, other)) for other in self.namespaces if other != end}

    def move(self, end: str) -> None:
        """Reads the packets that wait at an end, and forwards them."""
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = os.read(self._devices[end], MTU + 64)
                other = self._names.get(packet[16:20])
                if packet[0] >> 4 != 4 or other is None:
                    continue
                if frozenset((end, other)) in self.cut or self.rng.random() < self.loss or self._is_forgotten(packet):
                    self.lost += 1
                elif delay_s := self.delay_s + self._queue_s(end, "from", packet) + self._queue_s(other, "to", packet):
                    asyncio.get_running_loop().call_later(delay_s, self._deliver, other, packet)
                else:
                    self._deliver(other, packet)

    def _queue_s(self, end: str, direction: str, packet: bytes) -> float:
        """Seconds until a packet has passed the thin link of an end, behind those that came before."""
        if end not in self.rates:
            return 0.0
        now = asyncio.get_running_loop().time()
        begins = max(now, self._busy_until.get((end, direction), 0.0))
        self._busy_until[end, direction] = ends = begins + len(packet) / self.rates[end]
        return ends - now

    def sent_until(self, end: str) -> float:
        """When all that an end has sent will have passed its thin link, in loop time; 0 if it has sent nothing."""
        return self._busy_until.get((end, "from"), 0.0)

    def _is_forgotten(self, packet: bytes) -> bool:
        """Whether the middlebox has forgotten the connection of a TCP packet; a new connection is noted."""
        if self.idle_s == math.inf or packet[9] != socket.IPPROTO_TCP:
            return False
        header = 4 * (packet[0] & 15)
        ports = packet[header : header + 4]
        flow = frozenset((packet[12:16] + ports[:2], packet[16:20] + ports[2:]))
        now, opens = asyncio.get_running_loop().time(), bool(packet[header + 13] & _SYN)
        before = self._passed.get(flow, now)
        if opens or before == now:
            before = now
        elif before != math.inf and now - before > self.idle_s:
            self.forgotten += 1
            before = math.inf
        self._passed[flow] = math.inf if before == math.inf else now
        return before == math.inf

    def readdress(self, end: str) -> None:
        """Gives an end another address. Its connections end without a notice, and nobody reaches the old address."""
        self._names.pop(_packed(self.addresses[end]))
        where = ("-n", self.namespaces[end], "address")
        _ip(*where, "delete", f"{self.addresses[end]}/24", "dev", self._interfaces[end])
        self._address(end)

    def _address(self, end: str) -> None:
        self._numbers += 1
        address = self.addresses[end] = f"{NETWORK}{self._numbers}"
        self._names[_packed(address)] = end
        _ip("-n", self.namespaces[end], "address", "add", f"{address}/24", "dev", self._interfaces[end])

    def add(self, end: str, number: int, tag: str) -> None:
        """Makes an end with its namespace and device."""
        namespace = self.namespaces[end] = f"{PREFIX}{os.getpid()}-{tag}-{number}"
        _ip("netns", "add", namespace)
        device = self._devices[end] = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        name = self._interfaces[end] = f"fc{os.getpid() % 100000}{tag}{number}"
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
        _ip("link", "set", name, "netns", namespace)
        self._address(end)
        _ip("-n", namespace, "link", "set", name, "mtu", str(MTU), "up")
        _ip("-n", namespace, "link", "set", "lo", "up")
        asyncio.get_running_loop().add_reader(device, self.move, end)

    def close(self) -> None:
        """Removes all ends."""
        for device in self._devices.values():
            asyncio.get_running_loop().remove_reader(device)
            os.close(device)
        self._devices.clear()
        for namespace in self.namespaces.values():
            subprocess.run(["ip", "netns", "delete", namespace], check=False, stderr=subprocess.DEVNULL)

    def _deliver(self, end: str, packet: bytes) -> None:
        if end in self._devices:
            with contextlib.suppress(OSError):  # the buffer is full, so the packet is lost, as on any link
                os.write(self._devices[end], packet)
                self.moved += 1


@contextlib.contextmanager
def linked(ends: list[str], tag: str, delay_s: float, loss: float, seed: int) -> Iterator[Links]:
    """A context for a network with these ends. `tag` distinguishes the networks of this process."""
    links = Links(delay_s, loss, random.Random(seed))
    try:
        for number, end in enumerate(ends):
            links.add(end, number, tag)
        yield links
    finally:
        links.close()


def why_not() -> str | None:
    """The reason why networks cannot be made on this machine; None if they can."""
    if os.geteuid():
        return "network namespaces need root"
    name = f"{PREFIX}{os.getpid()}-probe"
    try:
        _ip("netns", "add", name)
        _ip("netns", "delete", name)
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces here: {error}"
    return None


def sweep() -> None:
    """Removes the namespaces of campaigns that were killed."""
    listed = subprocess.run(["ip", "netns", "list"], check=False, capture_output=True, text=True).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith(PREFIX)):
        if not psutil.pid_exists(int(name.removeprefix(PREFIX).split("-")[0])):
            subprocess.run(["ip", "netns", "delete", name], check=False)


def _packed(address: str) -> bytes:
    return bytes(map(int, address.split(".")))


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
