"""Measures one hop of a model between processes: `python -m benchmarks.performance.hop`.

Seven processes pass a model on over loopback. Each sends it after it has received the whole model, so one sample is a
sixth of the time from the first process to the last. FedGSP's hop is that of nodes: a process fetches the model in
chunks, checks the digest and that values are finite, has tensors for training, and computes a digest before it sends,
as after training. It is measured through a pipe, as on one machine, and through the network, as between
machines. The comparisons are raw TCP and a plain gRPC stream into a buffer, which check nothing, and TCP whose
receiver checks the same, into the same buffer each time. The hop with mutual TLS is compared with the network hop
without TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
from blake3 import blake3

from benchmarks.performance import certificates
from benchmarks.performance.rows import Row, main
from benchmarks.performance.sizes import LARGE, LEAF_CNN
from fedgsp.connections.channels import Channels, start_server
from fedgsp.identity import TOP_SERVER, node
from fedgsp.messages import Source, SourceKind, Start, TensorSpec
from fedgsp.processes import lifecycle
from fedgsp.security.access import AccessControl, Caller
from fedgsp.security.tickets import KEY_BYTES, Door, Issuer, Ticket, Verb
from fedgsp.security.tls import Tls, load, tls_files
from fedgsp.tensors.memory import room
from fedgsp.tensors.weights import Finiteness, Weights
from fedgsp.transfers import pipes
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.transfers.piped import PIECE_BYTES
from fedgsp_node.fetching import Fetcher

PROCESSES = 7
CHUNK_BYTES = 2 * 1024 * 1024
SIZES = {"26 MB": LEAF_CNN, "250 MB": LARGE}
Kind = Callable[[int, int, Tls | None], Coroutine[Any, Any, None]]


async def _line() -> str:
    return await asyncio.to_thread(sys.stdin.readline)


def _say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _model(parameters: int) -> Weights:
    weights = Weights.empty((TensorSpec("w", "float32", (parameters,)),))
    weights.arrays["w"][...] = np.random.default_rng(0).standard_normal(parameters, np.float32)
    return weights


def _neighbours(index: int) -> tuple[socket.socket | None, socket.socket | None]:
    """Connections to the process before this one and to the one after it in the chain."""
    listening = socket.create_server(("127.0.0.1", 0))
    _say(listening.getsockname()[1])
    port = int(sys.stdin.readline())
    before = socket.create_connection(("127.0.0.1", port)) if index else None
    after = listening.accept()[0] if index < PROCESSES - 1 else None
    for connection in (before, after):
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return before, after


async def tcp(index: int, parameters: int, tls: Tls | None) -> None:
    """A TCP hop with recv_into and sendall, always into the same buffer."""
    before, after = _neighbours(index)
    view = _model(parameters).buffer.data
    while before is not None or sys.stdin.readline():
        filled = 0
        while before is not None and filled < len(view):
            got = before.recv_into(view[filled:])
            if not got:
                return
            filled += got
        if after is None:
            _say("whole")
        else:
            after.sendall(view)


async def checked(index: int, parameters: int, tls: Tls | None) -> None:
    """The same, with what a hop of FedGSP checks: digests at both ends, and whether all values are finite."""
    before, after = _neighbours(index)
    model = _model(parameters)
    view = model.buffer.data
    while before is not None or sys.stdin.readline():
        filled, hasher, finiteness = 0, blake3(), Finiteness(model)
        while before is not None and filled < len(view):
            got = before.recv_into(view[filled : filled + PIECE_BYTES], 0, socket.MSG_WAITALL)
            if not got:
                return
            hasher.update(view[filled : filled + got])
            filled += got
            finiteness.filled_to(filled)
        if before is not None and before.recv(hasher.digest_size, socket.MSG_WAITALL) != hasher.digest():
            raise RuntimeError("the model came with another digest")
        finiteness.check()
        if after is None:
            _say("whole")
            continue
        digest = asyncio.create_task(asyncio.to_thread(lambda: model.to_change().digest))
        await asyncio.to_thread(after.sendall, view)
        after.sendall(await digest)


async def bare(index: int, parameters: int, tls: Tls | None) -> None:
    """A hop by a gRPC stream of bytes."""
    size = _model(parameters).buffer.nbytes if index == 0 else 4 * parameters + 4 * (parameters % 2)
    promised: dict[bytes, asyncio.Future[memoryview]] = {}

    def promise(name: bytes) -> asyncio.Future[memoryview]:
        return promised.setdefault(name, asyncio.get_running_loop().create_future())

    async def fetch(name: bytes, _: object) -> AsyncIterator[bytes]:
        view = await promise(name)
        del promised[name]
        for offset in range(0, len(view), CHUNK_BYTES):
            yield bytes(view[offset : offset + CHUNK_BYTES])

    handler = grpc.method_handlers_generic_handler("Bare", {"Fetch": grpc.unary_stream_rpc_method_handler(fetch)})
    server, address = await start_server(
        "127.0.0.1:0", [lambda server: server.add_generic_rpc_handlers((handler,))], _Open()
    )
    _say(address.rpartition(":")[2])
    port = int(await _line())
    async with Channels() as channels:
        number = 0
        first = _model(parameters).buffer.data if index == 0 else None
        while index or await _line():
            name = str(number).encode()
            number += 1
            if first is not None:
                promise(name).set_result(first)
                continue
            buffer, filled = room(size), 0
            view = buffer.data
            async for chunk in (await channels.to(f"127.0.0.1:{port}", TOP_SERVER)).unary_stream("/Bare/Fetch")(name):
                view[filled : filled + len(chunk)] = chunk
                filled += len(chunk)
            if index == PROCESSES - 1:
                _say("whole")
            else:
                promise(name).set_result(view)
    await server.stop(0)


class _Open(AccessControl):
    """Lets everybody call the server of the bare stream, which asks nothing of its callers."""

    def __init__(self) -> None:
        super().__init__({}, tls=False)

    def admit(self, method: str, context: grpc.aio.ServicerContext, ca: bytes = b"") -> Caller:
        return Caller(None, None)


async def network(index: int, parameters: int, tls: Tls | None) -> None:
    """A hop by the code of nodes, through the network as between machines."""
    pipes.choose("network")
    await ours(index, parameters, tls)


async def ours(index: int, parameters: int, tls: Tls | None) -> None:
    """A hop by the code of nodes."""
    store = ModelStore()
    holder = reader = node("reader")  # all processes of the chain have one certificate
    issuer = Issuer(bytes(KEY_BYTES))
    guard = AccessControl({Verb.FETCH: Door(issuer.key_of(holder))}, tls is not None)
    server, address = await start_server("127.0.0.1:0", [ModelServicer(store).add_to], guard, tls)
    _say(address.rpartition(":")[2])
    source = Source(SourceKind.NODE, reader.name, f"127.0.0.1:{int(await _line())}")
    model = _model(parameters)
    async with Channels(tls) as channels:
        fetcher = Fetcher(store, channels, model.tensors, "127.0.0.1")
        number = 0
        while index or await _line():
            held = model.buffer
            if index:
                ticket = issuer.ticket(holder, Ticket(Verb.FETCH, f"{number}", reader))
                start = Start(f"{number}", (dataclasses.replace(source, ticket=ticket),))
                held = (await fetcher.get(start))[0].buffer
            # As after training, the weights differ from the received ones, so their digest is not known.
            store.release([f"{number - 1}"])
            store.put(f"{number}", Weights(model.tensors, held))
            number += 1
            if index == PROCESSES - 1:
                _say("whole")
    await server.stop(0)


KINDS: dict[str, Kind] = {
    "tcp": tcp,
    "checked": checked,
    "bare": bare,
    "ours": ours,
    "network": network,
    "tls": network,
}


@contextlib.contextmanager
def _chain(kind: str, parameters: int, folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    files = [str(path) for path in (certificates.make(folder) if kind == "tls" else ())]
    command = [sys.executable, "-m", "benchmarks.performance.hop", "process", kind, str(parameters)]
    pipe = subprocess.PIPE
    chain = [
        subprocess.Popen([*command, str(index), *files], stdin=pipe, stdout=pipe, text=True)
        for index in range(PROCESSES)
    ]
    try:
        ports = [process.stdout.readline().strip() for process in chain if process.stdout]
        for index, process in enumerate(chain):
            _tell(process, ports[index - 1] if index else "0")
        yield chain
    finally:
        for process in chain:
            process.kill()
        for process in chain:
            process.wait()


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _hop_ms(chain: list[subprocess.Popen[str]]) -> float:
    begin = time.perf_counter()
    _tell(chain[0], "go")
    assert chain[-1].stdout is not None
    if chain[-1].stdout.readline() != "whole\n":
        raise RuntimeError("a process of the chain ended")
    return 1000 * (time.perf_counter() - begin) / (PROCESSES - 1)


def _digest_ms(model: Weights, repeats: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Milliseconds for the digest of a model, which its maker and each receiver compute, and for SHA-256 of it."""
    ours, sha256 = [], []
    for _ in range(repeats):
        begin = time.perf_counter()
        _ = model.to_change().digest
        ours.append(1000 * (time.perf_counter() - begin))
        begin = time.perf_counter()
        hashlib.sha256(model.buffer.data)
        sha256.append(1000 * (time.perf_counter() - begin))
    return tuple(ours), tuple(sha256)


def measure(repeats: int, sizes: tuple[str, ...] = tuple(SIZES)) -> list[Row]:
    """Measures the kinds of hops in turn: `repeats` times, after two times to warm up."""
    rows = []
    for size, parameters in ((size, SIZES[size]) for size in sizes):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            chains = {kind: stack.enter_context(_chain(kind, parameters, Path(folder))) for kind in KINDS}
            samples: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for repeat in range(repeats + 2):
                for kind, chain in chains.items():
                    found = _hop_ms(chain)
                    if repeat >= 2:
                        samples[kind].append(found)
        tcp_ms, checked_ms, bare_ms, ours_ms, network_ms, tls_ms = (tuple(samples[kind]) for kind in KINDS)
        digest_ms, sha256_ms = _digest_ms(_model(parameters), repeats)
        rows += [
            Row(f"digest of a model, {size}", "ms", digest_ms, 1.0, "SHA-256", sha256_ms),
            Row(f"relay hop, {size}, one machine", "ms", ours_ms, 2.0, "raw TCP", tcp_ms),
            Row(f"relay hop, {size}, one machine", "ms", ours_ms, 1.5, "TCP with the same checks", checked_ms),
            Row(f"relay hop, {size}, through the network", "ms", network_ms, 2.0, "raw TCP", tcp_ms),
            Row(f"bare gRPC stream, {size}", "ms", bare_ms, 1.9, "raw TCP", tcp_ms, note="for comparison"),
            Row(
                f"relay hop with mutual TLS, {size}, through the network", "ms", tls_ms, 1.5, "without TLS", network_ms
            ),
        ]
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["process"]:
        kind, parameters, index, *files = sys.argv[2:]
        tls = load(tls_files(*map(Path, files))) if files else None
        sys.exit(lifecycle.run(KINDS[kind](int(index), int(parameters), tls)))
    main(measure, __doc__ or "", repeats=15)
