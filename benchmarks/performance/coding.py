"""Measures coded transfers over thin links, and the speed of the code: `python -m benchmarks.performance.coding`.

A relay of four clients trains LEAF's CNN with SGD on scikit-learn's digits, drawn 28 pixels wide. What travels is the
model after the last client, in float32 and rounded to bfloat16; both ends have the model before that client, or only
the start of the relay. Each link is a proxy with a round trip and a rate, in a network namespace, as in
`benchmarks.performance.wan`. The comparison is the floor of the bytes as they are: bytes / rate + round trip. One link
is the loopback device without a proxy. There, the comparison is the same transfer without coding.

Needs Linux and root.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.performance.rows import Row, main
from benchmarks.performance.training import CharacterCnn
from fedgsp import ClientData, Split
from fedgsp.connections.channels import Channels, start_server
from fedgsp.identity import node
from fedgsp.messages import TrainingSettings
from fedgsp.security.access import AccessControl
from fedgsp.security.tickets import KEY_BYTES, Door, Issuer, Ticket, Verb
from fedgsp.tensors.encoding import rounded, wire_bytes
from fedgsp.tensors.memory import room
from fedgsp.tensors.weights import Weights
from fedgsp.transfers import pipes
from fedgsp.transfers.bases import Bases
from fedgsp.transfers.coding import Decoder, Encoder, blocks
from fedgsp.transfers.link_choice import AUTO
from fedgsp.transfers.model_calls import fetch
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.clients import Clients
from fedgsp_node.model.torch_weights import weights_of
from fedgsp_node.training.control import Control

#: Round trips in milliseconds, and rates in Mbit/s.
LINKS = [(20, 1000), (1, 100), (20, 100), (100, 100), (300, 100), (100, 10), (300, 10)]
#: Transfers over links that are faster than the coding: the first two find out which way is faster.
OVER_FAST_LINKS = 8
FAST_MBIT = 200
HOPS = 4
HOST = "10.97.99.1"
NAMESPACE = f"fedgsp-coding-{os.getpid()}"
KEY = Issuer(bytes(KEY_BYTES))
READER = node("reader")
KINDS = ("float32", "bfloat16")
BASES = ("the hop before", "the start of the relay")


class WideDigits(CharacterCnn):
    """The digits, 24 pixels wide with a border, dealt to the clients."""

    num_clients = HOPS

    def data(self, client: int) -> ClientData:
        images, labels = load_digits(return_X_y=True)
        images = images.reshape(-1, 8, 8).astype(np.float32) / 16
        wide = np.pad(images.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))[:, np.newaxis]
        mine = np.arange(client, len(wide), HOPS)[:226]
        part = Split(wide[mine], labels[mine].astype(np.int64))
        return ClientData(train=part, test=part)


def relayed() -> list[Weights]:
    """The start of the relay, and the model after each client."""
    clients = Clients(WideDigits(), range(HOPS))
    models = [clients.initial_weights(0)]
    settings = TrainingSettings("sgd", 1, 5, 0.01, 0)
    for client in range(HOPS):
        models.append(clients.train(client, models[-1].copy(), settings, 1, Control()).after)
    return models


def save(folder: Path) -> None:
    for number, model in enumerate(relayed()):
        np.save(folder / f"{number}.npy", model.buffer)


def read(folder: Path, kind: str) -> list[Weights]:
    """The saved models, as they travel."""
    tensors = weights_of(WideDigits().model()).tensors
    found = []
    for number in range(HOPS + 1):
        saved = np.load(folder / f"{number}.npy")
        model = Weights(tensors, room(len(saved)))
        model.buffer[:] = saved
        found.append(rounded(model) if kind == "bfloat16" else model)
        _ = found[-1].digest
    return found


def _base(models: list[Weights], which: str) -> Weights:
    return models[-2] if which == BASES[0] else models[0]


async def hold(folder: Path, kind: str, which: str) -> None:
    """Serves the last model, and has a base."""
    pipes.choose("network")
    models, store, bases = read(folder, kind), ModelStore(), Bases(AUTO)
    store.put("model", models[-1])
    await bases.remember(_base(models, which))
    servicer = ModelServicer(store, bases=bases)
    guard = AccessControl({Verb.FETCH: Door(KEY.key_of(READER))}, False)
    _, address = await start_server(f"{HOST}:0", [servicer.add_to], guard, None, insecure=True)
    sys.stdout.write(f"{address.rpartition(':')[2]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


@contextlib.contextmanager
def _process(*command: str) -> Iterator[int]:
    started = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        yield int(started.stdout.readline())
    finally:
        started.kill()
        started.wait()


async def _fetched(
    port: int, repeats: int, models: list[Weights], which: str, coded: bool = True
) -> tuple[list[float], int]:
    """Seconds of each transfer, and the bytes of the last. Nothing is `coded` without a base."""
    pipes.choose("network")
    ticket, took, travelled = KEY.ticket(READER, Ticket(Verb.FETCH, "model", READER)), [], 0
    async with Channels(None, insecure=True) as channels:
        channel = await channels.to(f"{HOST}:{port}", READER, models=True)
        await channel.channel_ready()
        for _ in range(repeats):
            bases = Bases(AUTO) if coded else None  # fresh: after a transfer, both ends have the model itself
            if bases is not None:
                await bases.remember(_base(models, which))
            begin = time.perf_counter()
            found = await fetch(channel, "model", None, 1 << 30, ticket=ticket, bases=bases)
            took.append(time.perf_counter() - begin)
            assert found.digest == models[-1].digest
            travelled = found.came.travelled if found.came else 0
    return took, travelled


def _speeds(models: list[Weights], base: Weights | None, repeats: int) -> tuple[list[float], list[float]]:
    """MB of weights per second that one thread codes, and that it decodes."""
    weights, coding, decoding = models[-1], [], []
    for _ in range(repeats):
        encoder, found = Encoder(weights, base), Weights(weights.tensors, room(len(weights.buffer)))
        found.bfloat16 = weights.bfloat16
        begin = time.thread_time()
        frames = [encoder.frame(block) for block in blocks(weights.tensors, weights.bfloat16)]
        coding.append(weights.buffer.nbytes / 1e6 / (time.thread_time() - begin))
        decoder = Decoder("model", found, base)
        begin = time.thread_time()
        for frame in frames:
            for _part in decoder.put(memoryview(frame)):
                pass
        decoding.append(weights.buffer.nbytes / 1e6 / (time.thread_time() - begin))
        assert found.buffer.tobytes() == weights.buffer.tobytes()
    return coding, decoding


def measure(repeats: int) -> list[Row]:
    """The rows of all kinds of weights, bases and links."""
    rows = []
    with tempfile.TemporaryDirectory() as name, asyncio.Runner() as loop:
        folder = Path(name)
        save(folder)
        for kind in KINDS:
            models = read(folder, kind)
            size = wire_bytes(models[-1].tensors, models[-1].bfloat16)
            for which in (None, *BASES):
                coding, decoding = _speeds(models, _base(models, which) if which else None, repeats)
                against = f"against {which}" if which else "without a base"
                rows.append(Row(f"coding {kind} {against}", "MB/s", tuple(coding), 44, at_least=True))
                rows.append(Row(f"decoding {kind} {against}", "MB/s", tuple(decoding), 44, at_least=True))
            for which in BASES:
                what = f"{kind} against {which}"
                for round_trip_ms, mbit in LINKS:
                    rate, trip, fast = mbit * 1e6 / 8, round_trip_ms / 1e3, mbit >= FAST_MBIT
                    with (
                        _process("benchmarks.performance.coding", "hold", name, kind, which) as port,
                        _process(
                            "benchmarks.performance.slow_link", HOST, HOST, str(port), str(rate), str(trip)
                        ) as reached,
                    ):
                        number = OVER_FAST_LINKS if fast else repeats + 1
                        took, travelled = loop.run(_fetched(reached, number, models, which))
                    floor = ("floor of uncoded bytes", (size / rate + trip,))
                    ratio = f"{size / travelled:.2f} times fewer bytes"
                    rows += _rows(f"{what}, {round_trip_ms} ms, {mbit} Mbit/s", took, fast, *floor, ratio)
                with _process("benchmarks.performance.coding", "hold", name, kind, which) as port:
                    took, _ = loop.run(_fetched(port, OVER_FAST_LINKS, models, which))
                    uncoded, _ = loop.run(_fetched(port, OVER_FAST_LINKS, models, which, coded=False))
                rows += _rows(f"{what}, no limit", took, True, "not coded", tuple(uncoded[1:]), "")
    return rows


def _rows(
    what: str, took: Sequence[float], fast: bool, beside: str, theirs: tuple[float, ...], note: str
) -> list[Row]:
    """The rows of a link: the later transfers, and the first one; on a `fast` link, where two ways are tried, two."""
    tried, limit = (2, 1.15) if fast else (1, 1.0)
    return [
        Row(what, "s", tuple(took[tried:]), limit, beside, theirs, note=note),
        Row(what, "s", tuple(took[:tried]), 2 * limit, beside, theirs, note="the first two" if fast else "the first"),
    ]


def _in_namespace() -> int:
    """Runs this measure again in a new network namespace, which has HOST as an address."""
    for words in (["netns", "add", NAMESPACE], ["-n", NAMESPACE, "link", "set", "lo", "up"]):
        subprocess.run(["ip", *words], check=True)
    try:
        subprocess.run(["ip", "-n", NAMESPACE, "address", "add", f"{HOST}/32", "dev", "lo"], check=True)
        command = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-m", "benchmarks.performance.coding"]
        there = {**os.environ, "FEDGSP_CODING": "1"}
        return subprocess.run([*command, *sys.argv[1:]], check=False, env=there).returncode
    finally:
        subprocess.run(["ip", "netns", "delete", NAMESPACE], check=False)


if __name__ == "__main__":
    if sys.argv[1:2] == ["hold"]:
        asyncio.run(hold(Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
    elif "FEDGSP_CODING" in os.environ:
        main(measure, __doc__ or "", repeats=3)
    else:
        sys.exit(_in_namespace())
