"""Compares models of colour images with the memory layout channels-last, as in the built-in tasks, and without it.

The measure takes the process's CPU time of one local epoch in plain torch and of one evaluation, on one thread, in
turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks.performance.rows import Row, main
from fedgsp_node.samples import Samples
from fedgsp_node.tasks.channels_last import ChannelsLast
from fedgsp_node.tasks.cifar10 import MODELS
from fedgsp_node.tasks.digit_domains import layers
from fedgsp_node.training.evaluation import batch_size

SAMPLES, BATCH = 320, 64
CASES: dict[str, tuple[Callable[[], list[nn.Module]], int]] = {
    "CIFAR-10, HCCT's CNN": (MODELS["hcct"], 32),
    "CIFAR-10, FedCollab's CNN": (MODELS["fedcollab"], 32),
    "digit domains, a quarter of the width": (partial(layers, 0.25), 28),
}


def seconds(first: nn.Module, rest: Callable[[], list[nn.Module]], x: torch.Tensor) -> tuple[float, float]:
    """Seconds of a local epoch, and of an evaluation."""
    torch.manual_seed(0)
    module = nn.Sequential(first, *rest()).train()
    y = torch.arange(len(x)) % 10
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
    begin = time.process_time()
    for inputs, targets in zip(x.split(BATCH), y.split(BATCH), strict=True):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(inputs), targets).backward()
        optimiser.step()
    trained = time.process_time()
    module.eval()
    with torch.inference_mode():
        for inputs in x.split(batch_size(Samples(x, y))):
            module(inputs)
    return trained - begin, time.process_time() - trained


def measure(repeats: int) -> list[Row]:
    torch.set_num_threads(1)
    rows = []
    for what, (rest, side) in CASES.items():
        x = torch.randn(SAMPLES, 3, side, side, generator=torch.Generator().manual_seed(0))
        pairs = [(seconds(ChannelsLast(), rest, x), seconds(nn.Identity(), rest, x)) for _ in range(repeats + 1)][1:]
        for place, (work, limit) in enumerate([("training", 0.95), ("evaluation", 1.2)]):
            ours, theirs = (tuple(SAMPLES / taken[place] for taken in some) for some in zip(*pairs, strict=True))
            rows.append(
                Row(f"{work}, {what}", "samples/s", ours, limit, "channels first", theirs, at_least=True),
            )
    return rows


if __name__ == "__main__":
    main(measure, __doc__ or "", repeats=7)
