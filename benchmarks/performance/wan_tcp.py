"""Measures transfers over real TCP with delay, rate and loss: `python -m benchmarks.performance.wan_tcp`.

`wan` has a proxy in the middle, which hides two things of TCP from the two ends: its slow start over a long way, and
what it does when packets are lost. Here the two ends are network namespaces, and this process forwards each packet
(`benchmarks.chaos.links`). A thin link has a queue without an end. This needs Linux, root and /dev/net/tun.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator

from benchmarks.chaos.links import Links, linked, why_not
from benchmarks.performance.rows import Row, main
from benchmarks.performance.sizes import LEAF_CNN
from benchmarks.performance.wan import read_bare, read_ours, read_tcp, upload_ours

#: Round trips in milliseconds, rates in Mbit/s, the share of packets that is lost, and TCP's control of congestion:
#: cubic is the default of Linux, and takes lost packets for a sign of congestion; bbr does not.
LINKS = [
    (20, 100, 0.0, "cubic"),
    (100, 100, 0.0, "cubic"),
    (300, 100, 0.0, "cubic"),
    (100, 10, 0.0, "cubic"),
    (100, 100, 0.001, "cubic"),
    (100, 100, 0.001, "bbr"),
    (100, 100, 0.01, "bbr"),
]
#: A connection with cubic is slow for long if a packet is lost early, and fast otherwise: so many show the usual one.
MANY_CONNECTIONS = 10
KINDS = {"bare": "bare gRPC", "ours": "fetch", "upload": "upload"}
READERS = {"bare": read_bare, "ours": read_ours, "upload": upload_ours}
TIMEOUT_S = 600.0


@contextlib.asynccontextmanager
async def _holding(links: Links, kind: str) -> AsyncIterator[str]:
    """The address of a process at one end that gives or takes models."""
    command = [sys.executable, "-m", "benchmarks.performance.wan", "hold", kind, links.addresses["holder"]]
    process = await asyncio.create_subprocess_exec(*links.command("holder", command), stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield f"{links.addresses['holder']}:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.wait()


async def _took(links: Links, kind: str) -> tuple[float, float]:
    """Seconds of two transfers one after the other over one connection, from a process at the other end."""
    async with _holding(links, "ours" if kind == "upload" else kind) as address:
        command = [sys.executable, "-m", "benchmarks.performance.wan_tcp", "read", kind, address, "2"]
        process = await asyncio.create_subprocess_exec(
            *links.command("reader", command), stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        first, second = json.loads(said)
        return first, second


def _choose(links: Links, control: str) -> None:
    """Chooses how the ends control congestion, by their routes: the default of a namespace may be fixed."""
    for namespace in links.namespaces.values():
        route = subprocess.check_output(["ip", "-n", namespace, "route", "show"], text=True).split()
        subprocess.run(["ip", "-n", namespace, "route", "change", *route, "congctl", control], check=True)


async def _rows(repeats: int) -> list[Row]:
    rows = []
    for number, (round_trip_ms, mbit, loss, control) in enumerate(LINKS):
        link = f"{round_trip_ms} ms, {mbit} Mbit/s" + (f", {100 * loss:g} % lost, {control}" if loss else "")
        with linked(["holder", "reader"], f"w{number}", round_trip_ms / 2e3, loss, seed=number) as links:
            links.rates = {"holder": mbit * 1e6 / 8}
            _choose(links, control)
            took: dict[str, list[tuple[float, float]]] = {kind: [] for kind in ("tcp", *KINDS)}
            for _ in range(MANY_CONNECTIONS if loss and control == "cubic" else repeats):
                for kind, found in took.items():
                    found.append(await _took(links, kind))
        (first_tcp, next_tcp), floor_s = zip(*took["tcp"], strict=True), 4 * LEAF_CNN / (mbit * 1e6 / 8)
        note = f"floor {floor_s + round_trip_ms / 1e3:.2f} s"
        for kind, what in KINDS.items():
            first, following = zip(*took[kind], strict=True)
            rows += [
                Row(f"{what}, {link}", "s", following, 1.15, "raw TCP", next_tcp, note=note),
                Row(f"{what}, {link}, the first of a connection", "s", first, 1.15, "raw TCP", first_tcp),
            ]
    return rows


def measure(repeats: int) -> list[Row]:
    """The rows of all links; each sample has a new connection, and the kinds are measured in turn."""
    if reason := why_not():
        raise SystemExit(reason)
    return asyncio.run(_rows(repeats))


def _read(kind: str, address: str, repeats: int) -> None:
    took = read_tcp(address, repeats) if kind == "tcp" else asyncio.run(READERS[kind](address, repeats))
    sys.stdout.write(json.dumps(took))


if __name__ == "__main__":
    if sys.argv[1:2] == ["read"]:
        _read(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main(measure, __doc__ or "", repeats=2)
