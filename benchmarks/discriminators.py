"""Measures what an exchange of client discriminators costs a client: `python -m benchmarks.discriminators`.

The table has the seconds of one SGD step of all networks of a client, and of one judgement on its validation part, on
one thread, as the minimum of the repeats. Compared are one stack of networks, and a loop over plain modules with
autograd and torch's SGD.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from fedgsp.messages import DiscriminatorSettings
from fedgsp.tensors.weights import Weights
from fedgsp_node.discriminators import Encoded, fresh, judge, sizes, step
from fedgsp_node.training.control import Control

VALIDATION = 2093
TRAINING = 300


class Plain(nn.Module):
    def __init__(self, features: int, labels: int, outputs: int) -> None:
        super().__init__()
        self.features, self.labels, self.output = (
            nn.Linear(features, 200),
            nn.Linear(labels, 200),
            nn.Linear(200, outputs),
        )
        self.classes = labels

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        label = nn.functional.one_hot(y, self.classes) * (self.classes / (self.classes - 1) ** 0.5)
        output: torch.Tensor = self.output(torch.relu(self.features(x) + 2 * self.labels(label)))
        return output


class OneByOne:
    """The networks of client 0. Each is a separate module with a separate optimiser."""

    def __init__(self, weights: Weights, samples: Encoded, settings: DiscriminatorSettings) -> None:
        outputs = weights.arrays["output.bias"].shape[1]
        self.modules = []
        for network in range(len(weights.arrays["output.bias"])):
            module = Plain(samples.x.shape[1], samples.classes, outputs)
            arrays = {name: torch.from_numpy(array[network].copy()) for name, array in weights.arrays.items()}
            module.load_state_dict(arrays)
            self.modules.append((module, torch.optim.SGD(module.parameters(), lr=settings.learning_rate)))
        self.samples, self.settings = samples, settings

    def step(self) -> None:
        for module, optimiser in self.modules:
            batch = torch.randperm(self.settings.samples)[: self.settings.batch_size]
            outputs = module(self.samples.x[batch], self.samples.y[batch])
            if self.settings.shared:
                loss = nn.functional.cross_entropy(outputs, torch.zeros(len(batch), dtype=torch.int64))
            else:
                loss = nn.functional.binary_cross_entropy_with_logits(outputs, torch.zeros_like(outputs))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    @torch.no_grad()
    def judge(self) -> list[int]:
        x, y = self.samples.x[self.settings.samples :], self.samples.y[self.settings.samples :]
        if self.settings.shared:
            outputs = self.modules[0][0](x, y)
            return list((outputs[:, :1] >= outputs).sum(dim=0).tolist())
        return [int((module(x, y) < 0).sum()) for module, _ in self.modules]


def seconds(call: Callable[[], object], repeats: int) -> float:
    least = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--others", type=int, default=19)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--labels", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    count = TRAINING + VALIDATION
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((count, arguments.features)).astype(np.float32))
    samples = Encoded(x, torch.from_numpy(rng.integers(0, arguments.labels, count)), arguments.labels)
    print(f"{'networks':>8} {'seconds for':>22} {'together':>10} {'one by one':>10} {'ratio':>6}")
    for shared in (False, True):
        others = tuple(range(0 if shared else 1, arguments.others + 1))
        settings = DiscriminatorSettings(TRAINING, 1, arguments.batch_size, 0.01, seed=0, shared=shared)
        networks, outputs = sizes(0, others, shared)
        weights = fresh(0, networks, outputs, arguments.features, arguments.labels)
        plain = OneByOne(weights, samples, settings)
        rows = (
            (
                f"step of {arguments.batch_size} rows",
                seconds(lambda: step(weights, samples, 0, others, settings, 0, Control()), arguments.repeats),  # noqa: B023
                seconds(plain.step, arguments.repeats),
            ),
            (
                f"judging {VALIDATION} rows",
                seconds(lambda: judge(weights, samples, 0, others, settings, Control()), arguments.repeats // 4),  # noqa: B023
                seconds(plain.judge, arguments.repeats // 4),
            ),
        )
        for what, ours, theirs in rows:
            print(f"{networks:>8} {what:>22} {ours:>10.5f} {theirs:>10.5f} {theirs / ours:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
