"""Says what the code saved in finished runs: python -m benchmarks.travelled RUN_DIR [...]

The run must have been played with `--wire coded --hand-over network`, because models do not travel through shared
memory. The table has the bytes of weights and the bytes that travelled, over the whole run, for each kind of hop: by
the source of the start that a client fetched, and by the kind of code. "To the managers" are the models that managers
took from nodes. With checkpoints of at least two rounds (`--keep-models all`), a second table compares codes of the
last model: against the model of the round before, without a base, and zstd of its bytes as they are.
"""

from __future__ import annotations

import argparse
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from fedgsp.messages import TensorSpec
from fedgsp.tensors.encoding import encoded, rounded, wire_bytes
from fedgsp.tensors.memory import room
from fedgsp.tensors.weights import Weights
from fedgsp.transfers.coding import LEVEL, Decoder, Encoder, blocks
from top_server.record.history import read_lines
from top_server.record.model_files import load


def hops(events: list[dict[str, Any]]) -> Iterator[tuple[str, int, int]]:
    """Kind of each transfer of a run, the bytes of its weights, and those that travelled."""
    for event in events:
        if event["event"] == "hop_finished" and event.get("coding"):
            yield f"from {event['via']}, {event['coding']}", event["bytes"], event["travelled"]


def by_kind(run: Path) -> list[tuple[str, int, int, int]]:
    """Kind of hop, number of hops, bytes of weights, bytes that travelled; the whole run last."""
    events, rows = read_lines(run / "events.jsonl"), read_lines(run / "history.jsonl")
    count, moved, travelled = Counter[str](), Counter[str](), Counter[str]()
    for kind, size, sent in hops(events):
        count[kind], moved[kind], travelled[kind] = count[kind] + 1, moved[kind] + size, travelled[kind] + sent
    all_moved = sum(row["bytes_direct"] + row["bytes_relayed"] for row in rows)
    all_travelled = sum(row["bytes_travelled"] for row in rows)
    found = [(kind, count[kind], moved[kind], travelled[kind]) for kind in sorted(count)]
    up = all_moved - sum(moved.values()), all_travelled - sum(travelled.values())
    return [*found, ("to the managers", 0, *up), ("the whole run", 0, all_moved, all_travelled)]


def checkpoint(path: Path, bfloat16: bool) -> Weights:
    """The weights of a checkpoint, as they travel."""
    arrays = load(path)[0]
    tensors = tuple(TensorSpec(name, str(array.dtype), array.shape) for name, array in arrays.items())
    weights = Weights.of(arrays, tensors)
    return rounded(weights) if bfloat16 else weights


def codes(weights: Weights, base: Weights) -> Iterator[tuple[str, float, float, float]]:
    """Name of a code, ratio of bytes, MB of weights per second coded and decoded by one thread."""
    size, megabytes = wire_bytes(weights.tensors, weights.bfloat16), weights.buffer.nbytes / 1e6
    for name, against in (("against the round before", base), ("without a base", None)):
        encoder, begin = Encoder(weights, against), time.thread_time()
        frames = [encoder.frame(block) for block in blocks(weights.tensors, weights.bfloat16)]
        coding_s, begin = time.thread_time() - begin, time.thread_time()
        found = Weights(weights.tensors, room(len(weights.buffer)), bfloat16=weights.bfloat16)
        decoder = Decoder("model", found, against)
        for frame in frames:
            for _ in decoder.put(memoryview(frame)):
                pass
        decoding_s = time.thread_time() - begin
        if found.digest != weights.digest:
            raise AssertionError(f"{name}: other bits")
        yield name, size / sum(map(len, frames)), megabytes / coding_s, megabytes / decoding_s
    stream, begin = b"".join(encoded(weights, 1 << 20)), time.thread_time()
    packed = zstandard.ZstdCompressor(level=LEVEL).compress(stream)
    coding_s, begin = time.thread_time() - begin, time.thread_time()
    zstandard.ZstdDecompressor().decompress(packed)
    yield "zstd of the bytes", size / len(packed), megabytes / coding_s, megabytes / (time.thread_time() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    for run in parser.parse_args().runs:
        print(f"\n{run.name}\n\n| transfers | number | MB of weights | MB travelled | ratio |\n|---|---|---|---|---|")
        for kind, number, moved, travelled in by_kind(run):
            if moved:
                ratio = f"{moved / travelled:.2f}" if travelled else "-"
                print(f"| {kind} | {number or ''} | {moved / 1e6:.1f} | {travelled / 1e6:.1f} | {ratio} |")
        models = sorted((run / "models").glob("round-*.safetensors"))
        if len(models) < 2:
            continue
        config = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))
        bfloat16 = config.get("wire_dtype") == "bfloat16"
        print("\n| code of the last model | ratio | MB/s coded | MB/s decoded |\n|---|---|---|---|")
        for name, saved, coded, decoded in codes(*(checkpoint(path, bfloat16) for path in models[:-3:-1])):
            print(f"| {name} | {saved:.2f} | {coded:.0f} | {decoded:.0f} |")


if __name__ == "__main__":
    main()
