"""What each view of an update costs, and how far cosines of sketches are off: `python benchmarks/sketch.py`.

Errors are those of the cosines of two vectors with a heavy-tailed (log-normal) spread of scales, under one seed per
repeat (mean and largest), next to the bound of their standard deviation, (1 - c^2) / sqrt(M): docs/decisions, 0007.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
from numpy.typing import NDArray

from fedgsp.messages import TensorSpec
from fedgsp.weights import Weights
from fedgsp_node.updates import reveal

#: Trainable parameters, and those of the largest layer, of the models for Fashion-MNIST, CIFAR-10 and digit domains.
MODELS = {50_890: 50_240, 1_126_950: 1_024_500, 14_219_210: 12_847_104}
FLOATS = (1024, 4096, 16384)
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
    parser.add_argument("--repeats", type=int, default=20, help="seeds per model and length of sketch")
    repeats = parser.parse_args().repeats
    errors = " ".join(f"{f'cos {cosine:g}: mean max bound':>26}" for cosine in COSINES)
    print(f"{'parameters':>10} {'view':>12} {'bytes':>10} {'seconds':>8} {errors}")
    for size, layer in MODELS.items():
        vectors = basis(size)
        zero = weights_of(np.zeros(size, np.float32), layer)
        pair = [weights_of(vector, layer) for vector in vectors]
        for view in ("exact", "layer:layer", *(f"sketch:{floats}" for floats in FLOATS)):
            seconds, found = math.inf, []
            for seed in range(repeats if view.startswith("sketch") else 2):
                start = time.perf_counter()
                first = reveal(view, pair[0], zero, 0.1, seed).arrays["update"]
                seconds = min(seconds, time.perf_counter() - start)
                if view.startswith("sketch"):
                    second = reveal(view, pair[1], zero, 0.1, seed).arrays["update"]
                    found.append([error(first, second, cosine) for cosine in COSINES])
            row = f"{size:>10} {view.split(':layer')[0]:>12} {first.nbytes:>10} {seconds:>8.3f}"
            if found:
                mean, most = np.mean(found, axis=0), np.max(found, axis=0)
                bounds = [(1 - cosine**2) / math.sqrt(len(first)) for cosine in COSINES]
                cells = zip(mean, most, bounds, strict=True)
                row += "".join(f" {f'{a:.5f} {b:.5f} {c:.5f}':>26}" for a, b, c in cells)
            print(row, flush=True)


def error(first: NDArray[np.generic], second: NDArray[np.generic], cosine: float) -> float:
    """How far the cosine is off for two vectors made of an orthogonal pair; sketches are linear."""
    one = first.astype(np.float64)
    two = cosine * one + math.sqrt(1 - cosine**2) * second.astype(np.float64)
    return abs(float(one @ two / np.linalg.norm(one) / np.linalg.norm(two)) - cosine)


if __name__ == "__main__":
    main()
