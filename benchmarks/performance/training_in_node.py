"""Compares the samples per second of training in a node, with its memory settings, and in a plain loop and process.

The model is HCCT's CNN for CIFAR-10, with batches of 64. Its activations take 8 MB. A process that returns freed
memory to the system would request them again in every step. Each side has a separate process with one thread. The time
is the process's CPU time, including time in the kernel.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.performance.rows import Row, main

if TYPE_CHECKING:
    import torch

COUNT, BATCH, RATE = 640, 64, 0.01


def _in_a_node() -> float:
    """Seconds of an epoch in a node."""
    from fedgsp import ClientData, Split, Task
    from fedgsp.messages import TrainingSettings
    from fedgsp.tensors import memory

    memory.keep_freed()

    import torch
    from torch import nn

    from fedgsp_node.clients import Clients
    from fedgsp_node.slot import Slot

    class Images(Task):
        num_classes, num_clients = 10, 1

        def model(self) -> nn.Module:
            return _model()

        def data(self, client: int) -> ClientData:
            x, y = _data()
            return ClientData(Split(x, y), Split(x[:1], y[:1]))

    torch.set_num_threads(1)
    clients, settings = Clients(Images(), None), TrainingSettings("sgd", 1, BATCH, RATE, seed=0)
    start = clients.initial_weights(0)

    async def epoch(slot: Slot) -> float:
        begin = time.process_time()
        await slot.run(lambda control: clients.train(0, start, settings, 1, control))
        return time.process_time() - begin

    async def second() -> float:
        slot = Slot()
        await epoch(slot)
        return await epoch(slot)

    return asyncio.run(second())


def _plain() -> float:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    module, (x, y) = _model().train(), (torch.from_numpy(part) for part in _data())
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)

    def epoch() -> float:
        begin = time.process_time()
        for rows in torch.split(torch.randperm(COUNT), BATCH):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(module(x[rows]), y[rows])
            loss.backward()
            optimiser.step()
            loss.item()
        return time.process_time() - begin

    epoch()
    return epoch()


def _model() -> torch.nn.Module:  # torch is imported after the memory settings are made
    from torch import nn

    from fedgsp_node.tasks.cifar10 import MODELS

    return nn.Sequential(*MODELS["hcct"]())


def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((COUNT, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, COUNT)


def measure(repeats: int) -> list[Row]:
    found: dict[Callable[[], float], list[float]] = {_in_a_node: [], _plain: []}
    for _ in range(repeats):
        for side, samples in found.items():
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                samples.append(COUNT / pool.apply(side))
    ours, plain = map(tuple, found.values())
    what = f"training CIFAR-10's CNN in a node, batch {BATCH}, sgd"
    return [Row(what, "samples/s", ours, 0.98, "a plain loop", plain, at_least=True)]


if __name__ == "__main__":
    main(measure, __doc__ or "", repeats=5)
