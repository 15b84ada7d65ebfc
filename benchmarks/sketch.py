"""Measures the cost of whole updates and of sketches, and the error of cosines: `python -m benchmarks.sketch`.

The errors are those of the cosine between the sketches of two vectors whose entries have log-normal scales, with one
seed per repeat. The table has their root mean square and maximum, and the standard deviation that decision 7 in
docs/decisions derives.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.messages import TensorSpec
from fedgsp.tensors.updates import LENGTH_BYTES
from fedgsp.tensors.weights import Weights
from fedgsp_node.updates import reveal

#: Trainable parameters of the model, and of its largest layer, for Fashion-MNIST, CIFAR-10 and digit domains.
MODELS = {50_890: 50_240, 1_126_950: 1_024_500, 14_219_210: 12_847_104}
BYTES = (4096, 16384, 65536)
COSINES = (0.0, 0.5, 0.9, 0.99)


def weights_of(vector: NDArray[np.float32], layer: int) -> Weights:
    parts = {"layer.weight": vector[:layer].reshape(1, -1), "rest": vector[layer:]}
    return Weights.of(parts, tuple(TensorSpec(name, "float32", part.shape) for name, part in parts.items()))


def basis(size: int) -> NDArray[np.float32]:
    """Two orthogonal unit vectors."""
    rng = np.random.default_rng(size)
    pair = rng.standard_normal((2, size)) * np.exp(rng.standard_normal(size))
    pair[1] -= pair[0] * (pair[0] @ pair[1]) / (pair[0] @ pair[0])
    unit: NDArray[np.float32] = (pair / np.linalg.norm(pair, axis=1, keepdims=True)).astype(np.float32)
    return unit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="number of seeds per model and sketch length")
    repeats = parser.parse_args().repeats
    errors = " ".join(f"{f'cos {cosine:g}: rms max derived':>28}" for cosine in COSINES)
    print(f"{'parameters':>10} {'view':>12} {'bytes':>10} {'seconds':>8} {errors}")
    for size, layer in MODELS.items():
        first, second = basis(size)
        zero = weights_of(np.zeros(size, np.float32), layer)
        start_of_one = weights_of(first, layer)
        others = [weights_of(cosine * first + math.sqrt(1 - cosine**2) * second, layer) for cosine in COSINES]
        for view in ("exact", "layer:layer", *(f"sketch:{count}" for count in BYTES)):
            seconds, found = math.inf, []
            for seed in range(repeats if view.startswith("sketch") else 2):
                start = time.perf_counter()
                one = reveal(view, start_of_one, zero, 0.1, seed).arrays["update"]
                seconds = min(seconds, time.perf_counter() - start)
                if view.startswith("sketch"):
                    shown = [reveal(view, other, zero, 0.1, seed).arrays["update"] for other in others]
                    found.append(np.abs([told_cosine(one, other) for other in shown] - np.array(COSINES)))
            row = f"{size:>10} {view.split(':layer')[0]:>12} {one.nbytes:>10} {seconds:>8.3f}"
            if found:
                spread, most = np.sqrt(np.square(found).mean(axis=0)), np.max(found, axis=0)
                cells = zip(spread, most, map(derived, COSINES, [8 * (one.nbytes - LENGTH_BYTES)] * 4), strict=True)
                row += "".join(f" {f'{a:.5f} {b:.5f} {c:.5f}':>28}" for a, b, c in cells)
            print(row, flush=True)


def told_cosine(first: NDArray[Any], second: NDArray[Any]) -> float:
    differ = np.unpackbits(first[LENGTH_BYTES:] ^ second[LENGTH_BYTES:]).mean()
    return math.cos(math.pi * differ)


def derived(cosine: float, signs: int) -> float:
    angle = math.acos(cosine)
    return math.sin(angle) * math.sqrt(angle * (math.pi - angle) / signs)


if __name__ == "__main__":
    main()
