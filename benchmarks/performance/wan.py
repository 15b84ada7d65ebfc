"""Measures one transfer of a model over long and over thin links: `python -m benchmarks.performance.wan`.

Each link is a proxy with a round trip and a rate (`slow_link`). A holder on one side gives 26 MB to a reader on the
other. FedGSP's reader fetches as nodes do; the uploader sends as nodes do that accept no connections. The comparisons
are raw TCP and a plain gRPC stream with gRPC's own window, which check nothing. The first transfer between two
processes finds out what the link carries; the other rows are of later ones, like almost all transfers of a run.
Everything runs in a network namespace with an address that is not loopback; this needs Linux and root.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import numpy as np

from benchmarks.performance import certificates
from benchmarks.performance.rows import Row, main
from benchmarks.performance.sizes import LEAF_CNN
from fedgsp.connections.addresses import split_address
from fedgsp.connections.channels import Channels, Line, start_server
from fedgsp.identity import node
from fedgsp.messages import TensorSpec
from fedgsp.security.access import AccessControl
from fedgsp.security.tickets import KEY_BYTES, Door, Issuer, Ticket, Verb
from fedgsp.security.tls import Tls, load, tls_files
from fedgsp.tensors.weights import Weights
from fedgsp.transfers import pipes
from fedgsp.transfers.model_calls import fetch, upload
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore

#: Round trips in milliseconds, and rates in Mbit/s.
ROUND_TRIPS, RATES = (1, 20, 100, 300), (1000, 100, 10)
#: Links up to this rate leave the processors idle, so that those of one rate are measured at the same time.
TOGETHER_MBIT = 10
HOST = "10.97.98.1"
NAMESPACE = f"fedgsp-wan-{os.getpid()}"
CHUNK_BYTES = 2 * 1024 * 1024
KEY = Issuer(bytes(KEY_BYTES))
READER = node("reader")


def _model() -> Weights:
    weights = Weights.empty((TensorSpec("w", "float32", (LEAF_CNN,)),))
    weights.arrays["w"][...] = np.random.default_rng(0).standard_normal(LEAF_CNN, np.float32)
    _ = weights.digest
    return weights


def _say(port: object) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


def hold_tcp(host: str) -> None:
    """Sends the model to everybody who sends a byte."""
    content = _model().buffer.tobytes()
    listening = socket.create_server((host, 0))
    _say(listening.getsockname()[1])

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while connection.recv(1):
            connection.sendall(content)

    while True:
        threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()


async def hold_bare(host: str) -> None:
    """Streams the model by plain gRPC."""
    content = _model().buffer.tobytes()

    async def give(_: bytes, context: object) -> AsyncIterator[bytes]:
        for start in range(0, len(content), CHUNK_BYTES):
            yield content[start : start + CHUNK_BYTES]

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handler = grpc.method_handlers_generic_handler("Bare", {"Give": grpc.unary_stream_rpc_method_handler(give)})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port(f"{host}:0")
    await server.start()
    _say(port)
    await asyncio.Event().wait()


async def hold_ours(host: str, tls: Tls | None) -> None:
    """Serves the model as a node does, and takes uploads as a group manager does."""
    pipes.choose("network")
    store = ModelStore()
    model = _model()
    store.put("model", model)
    servicer = ModelServicer(store, may_upload=lambda name: True, max_bytes=lambda: 1 << 30, served=lambda *_: None)
    doors = {verb: Door(KEY.key_of(READER)) for verb in (Verb.FETCH, Verb.UPLOAD)}
    guard = AccessControl(doors, tls is not None)
    _, address = await start_server(f"{host}:0", [servicer.add_to], guard, tls, insecure=True)
    _say(address.rpartition(":")[2])
    while True:  # uploads are measured, not kept
        await asyncio.sleep(0.05)
        store.release(list(store.ids("up/")))


@contextlib.contextmanager
def _process(*command: str) -> Iterator[int]:
    started = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        yield int(started.stdout.readline())
    finally:
        started.kill()
        started.wait()


@contextlib.contextmanager
def _behind_link(kind: str, round_trip_ms: float, mbit: float, files: list[str]) -> Iterator[int]:
    rate, trip = str(mbit * 1e6 / 8), str(round_trip_ms / 1e3)
    with (
        _process("benchmarks.performance.wan", "hold", kind, HOST, *files) as port,
        _process("benchmarks.performance.slow_link", HOST, HOST, str(port), rate, trip) as reached,
    ):
        yield reached


def read_tcp(address: str, repeats: int) -> list[float]:
    """Seconds of each transfer from `hold_tcp`."""
    size, took = _model().buffer.nbytes, []
    with socket.create_connection(split_address(address)) as connection:
        for _ in range(repeats):
            begin, left = time.perf_counter(), size
            connection.sendall(b"?")
            while left:
                left -= len(connection.recv(min(left, 1 << 20)))
            took.append(time.perf_counter() - begin)
    return took


async def read_bare(address: str, repeats: int) -> list[float]:
    """Seconds of each transfer from `hold_bare`."""
    took = []
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        for _ in range(repeats):
            begin = time.perf_counter()
            async for _chunk in channel.unary_stream("/Bare/Give")(b""):
                pass
            took.append(time.perf_counter() - begin)
    return took


async def read_ours(address: str, repeats: int, tls: Tls | None = None) -> list[float]:
    """Seconds of each fetch from `hold_ours`."""
    pipes.choose("network")
    ticket = KEY.ticket(READER, Ticket(Verb.FETCH, "model", READER))
    took = []
    async with Channels(tls, insecure=True) as channels:
        for _ in range(repeats):
            channel = await channels.to(address, READER, models=True)
            await channel.channel_ready()
            begin = time.perf_counter()
            await fetch(channel, "model", None, 1 << 30, ticket=ticket)
            took.append(time.perf_counter() - begin)
    return took


async def upload_ours(address: str, repeats: int, tls: Tls | None = None) -> list[float]:
    """Seconds of each upload to `hold_ours`."""
    pipes.choose("network")
    model, took = _model(), []
    async with Channels(tls, insecure=True) as channels:
        line: Line = channels.line(address, READER)
        for number in range(repeats):
            channel = await line.dial()
            await channel.channel_ready()
            name = f"up/{number}"
            ticket = KEY.ticket(READER, Ticket(Verb.UPLOAD, name, READER))
            begin = time.perf_counter()
            await upload(channel, name, model, ticket=ticket, way=line.way)
            took.append(time.perf_counter() - begin)
    return took


def measure(repeats: int) -> list[Row]:
    """The rows of all links; in each link the kinds are measured one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(path) for path in certificates.make(Path(folder), HOST)]
        return asyncio.run(_rows(repeats, files))


async def _rows(repeats: int, files: list[str]) -> list[Row]:
    rows: list[Row] = []
    for mbit in RATES:
        links = [_of_link(trip_ms, mbit, repeats, files) for trip_ms in ROUND_TRIPS]
        found = await asyncio.gather(*links) if mbit <= TOGETHER_MBIT else [await link for link in links]
        rows += [row for of_link in found for row in of_link]
    return rows


async def _of_link(trip_ms: float, mbit: float, repeats: int, files: list[str]) -> list[Row]:
    link, tls = f"{trip_ms} ms, {mbit} Mbit/s", load(tls_files(*map(Path, files)))
    floor_s = _model().buffer.nbytes / (mbit * 1e6 / 8) + trip_ms / 1e3
    with _behind_link("tcp", trip_ms, mbit, []) as port:
        tcp = tuple(await asyncio.to_thread(read_tcp, f"{HOST}:{port}", repeats))
    with _behind_link("bare", trip_ms, mbit, []) as port:
        bare = await read_bare(f"{HOST}:{port}", repeats + 1)
    rows = [Row(f"bare gRPC, {link}", "s", tuple(bare[1:]), 1.15, "raw TCP", tcp, note=f"floor {floor_s:.2f} s")]
    for secured in (None, tls):
        way = link if secured is None else f"mutual TLS, {link}"
        with _behind_link("ours", trip_ms, mbit, files if secured else []) as port:
            first, *later = await read_ours(f"{HOST}:{port}", repeats + 1, secured)
        with _behind_link("ours", trip_ms, mbit, files if secured else []) as port:
            _, *up = await upload_ours(f"{HOST}:{port}", repeats + 1, secured)
        rows += [
            Row(f"fetch, {way}", "s", tuple(later), 1.15, "raw TCP", tcp),
            Row(f"fetch, {way}", "s", (first,), 2.0, "raw TCP", tcp, note="the first"),
            Row(f"upload, {way}", "s", tuple(up), 1.15, "raw TCP", tcp),
        ]
    return rows


def _in_namespace() -> int:
    """Runs this measure again in a new network namespace, which has HOST as an address."""
    for words in (["netns", "add", NAMESPACE], ["-n", NAMESPACE, "link", "set", "lo", "up"]):
        subprocess.run(["ip", *words], check=True)
    try:
        subprocess.run(["ip", "-n", NAMESPACE, "address", "add", f"{HOST}/32", "dev", "lo"], check=True)
        command = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-m", "benchmarks.performance.wan"]
        return subprocess.run([*command, *sys.argv[1:]], check=False, env={**os.environ, "FEDGSP_WAN": "1"}).returncode
    finally:
        subprocess.run(["ip", "netns", "delete", NAMESPACE], check=False)


def _hold(kind: str, host: str, files: list[str]) -> None:
    if kind == "tcp":
        hold_tcp(host)
    else:
        tls = load(tls_files(*map(Path, files))) if files else None
        asyncio.run(hold_bare(host) if kind == "bare" else hold_ours(host, tls))


if __name__ == "__main__":
    if sys.argv[1:2] == ["hold"]:
        _hold(sys.argv[2], sys.argv[3], sys.argv[4:])
    elif "FEDGSP_WAN" in os.environ:
        main(measure, __doc__ or "", repeats=3)
    else:
        sys.exit(_in_namespace())
