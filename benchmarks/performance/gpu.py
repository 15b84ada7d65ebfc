"""Compares training in a node on a GPU with a plain torch loop on the same GPU, and with the node on the processor.

Both loops take random batches of data in memory, move them to the GPU and train with the settings of a node:
deterministic algorithms, and no TF32. The plain loop asks for no loss before its end. The times are wall times,
without the start of the process. In the last rows several node processes share the GPU. The notes have the memory of
the GPU that each process takes, with what CUDA itself needs.
"""

from __future__ import annotations

import itertools
import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.performance.rows import Row, main
from benchmarks.performance.training import CharacterCnn
from fedgsp import ClientData, Split, Task
from fedgsp.messages import OptimizerSettings, TrainingSettings
from fedgsp_node.clients import Clients
from fedgsp_node.devices import CPU, prepare
from fedgsp_node.training.control import Control

RATE = 0.01
PLAIN, ADAMW = None, OptimizerSettings("adamw")
AUTOCAST = OptimizerSettings("adamw", precision="bfloat16")
#: Node processes that share the GPU, and how long they wait for each other, in seconds.
TOGETHER, MOST_S = (1, 4, 8), 300.0


class Block(nn.Module):
    """Two convolutions around which the input passes, as in a ResNet of 18 layers."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x) + self.around(x))


class Pictures(Task):
    """Coloured pictures of 32 by 32 for a network of 11 million parameters."""

    num_classes, num_clients, shape = 10, 1, (3, 32, 32)

    def __init__(self, count: int) -> None:
        self._count = count

    def model(self) -> nn.Module:
        widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
        blocks = [Block(before, after, stride=after // before) for before, after in itertools.pairwise(widths)]
        first = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))

    def data(self, client: int) -> ClientData:
        rng = np.random.default_rng(client)
        x = rng.standard_normal((self._count, *self.shape), dtype=np.float32)
        y = rng.integers(0, self.num_classes, self._count)
        return ClientData(Split(x, y), Split(x[:8], y[:8]))


class Characters(Pictures):
    """LEAF's CNN for FEMNIST, of 6.6 million parameters."""

    num_classes, shape = 62, (1, 28, 28)

    def model(self) -> nn.Module:
        return CharacterCnn().model()


class Words(Pictures):
    """Sequences of 64 words for a transformer of 4 layers and 3.4 million parameters."""

    num_classes = 20

    def model(self) -> nn.Module:
        return Reader()

    def data(self, client: int) -> ClientData:
        rng = np.random.default_rng(client)
        x, y = rng.integers(0, 1000, (self._count, 64)), rng.integers(0, self.num_classes, self._count)
        return ClientData(Split(x, y), Split(x[:8], y[:8]))


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
        self.layers, self.last = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(256, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.layers(self.words(x)).mean(1))
        return found


class Case(NamedTuple):
    name: str
    task: Callable[[int], Task]
    samples: int
    batch_size: int
    #: Samples for the processor, which would take too long for all; 0 for none.
    on_cpu: int
    optimizer: OptimizerSettings | None


#: The case in which several nodes share the GPU.
SHARED = Case("a ResNet of 18 layers, batch 64, sgd", Pictures, 6400, 64, 128, PLAIN)
CASES = [
    Case("LEAF's CNN, batch 5, sgd", Characters, 1000, 5, 100, PLAIN),
    Case("LEAF's CNN, batch 64, sgd", Characters, 12800, 64, 640, PLAIN),
    SHARED,
    Case("a ResNet of 18 layers, batch 64, adamw", Pictures, 6400, 64, 0, ADAMW),
    Case("a ResNet of 18 layers, batch 64, adamw in bfloat16", Pictures, 6400, 64, 0, AUTOCAST),
    Case("a transformer of 4 layers, batch 32, adamw", Words, 6400, 32, 128, ADAMW),
]


def how(case: Case) -> TrainingSettings:
    return TrainingSettings("sgd", 1, case.batch_size, RATE, seed=0, optimizer=case.optimizer)


def in_a_node(case: Case, count: int, device: torch.device) -> float:
    """Samples per second of one epoch in a node, after a first one."""
    clients = Clients(case.task(count), None, device=device)
    start = clients.initial_weights(0)
    clients.train(0, start, how(case), 1, Control())
    begin = time.perf_counter()
    clients.train(0, start, how(case), 2, Control())
    return count / (time.perf_counter() - begin)


def plainly(case: Case, gpu: torch.device) -> float:
    """Samples per second of one epoch of a loop of torch, after a first one."""
    task = case.task(case.samples)
    part = task.data(0).train
    x, y = torch.from_numpy(part.x), torch.from_numpy(part.y)
    module = task.model().to(gpu).train()
    kind: Any = torch.optim.AdamW if case.optimizer else torch.optim.SGD
    narrow = case.optimizer is AUTOCAST

    def epoch() -> float:
        optimizer = kind(module.parameters(), lr=RATE)
        total = torch.zeros((), device=gpu)
        begin = time.perf_counter()
        for rows in torch.split(torch.randperm(len(x)), case.batch_size):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=narrow):
                loss = task.loss(module(x[rows].to(gpu)), y[rows].to(gpu))
            loss.backward()
            optimizer.step()
            total += loss.detach()
        total.item()
        return time.perf_counter() - begin

    epoch()
    return len(x) / epoch()


def together(ready: Any) -> tuple[float, float, int]:
    """Begin and end of one epoch with other processes beside this one, and the bytes that are taken on the GPU."""
    gpu, case = torch.device("cuda", 0), SHARED
    prepare(gpu)
    torch.set_num_threads(1)
    clients = Clients(case.task(case.samples), None, device=gpu)
    start = clients.initial_weights(0)
    clients.train(0, start, how(case), 1, Control())
    ready.wait()
    begin = time.time()
    clients.train(0, start, how(case), 2, Control())
    end = time.time()
    free, total = torch.cuda.mem_get_info(gpu)
    ready.wait()  # nobody's memory is given back before all have looked
    return begin, end, total - free


def shared(processes: int) -> tuple[float, float]:
    """Samples per second of node processes that share the GPU, and the GiB of each."""
    context, (free, total) = multiprocessing.get_context("spawn"), torch.cuda.mem_get_info()
    with context.Manager() as manager, context.Pool(processes) as pool:
        ready = manager.Barrier(processes, timeout=MOST_S)
        found = pool.map(together, [ready] * processes, chunksize=1)
    begins, ends, taken = zip(*found, strict=True)
    memory = (max(taken) - (total - free)) / processes
    return processes * SHARED.samples / (max(ends) - min(begins)), memory / 2**30


def the_gpu() -> tuple[torch.device, str]:
    """The GPU, prepared as by a node with one thread, and its name; ends the process if there is none."""
    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} finds no GPU here")
    gpu = torch.device("cuda", 0)
    prepare(gpu)
    torch.set_num_threads(1)
    return gpu, torch.cuda.get_device_name(gpu)


def measure(repeats: int) -> list[Row]:
    (gpu, name), rows = the_gpu(), []
    for case in CASES:
        pairs = [(in_a_node(case, case.samples, gpu), plainly(case, gpu)) for _ in range(repeats)]
        ours, plain = map(tuple, zip(*pairs, strict=True))
        what = f"training {case.name}"
        rows.append(Row(what, "samples/s", ours, 0.9, "a plain loop", plain, at_least=True, note=name))
        if case.on_cpu:
            slow = (in_a_node(case, case.on_cpu, CPU),)
            rows.append(Row(what, "samples/s", ours, 1, "a node on one core", slow, at_least=True, note=name))
        sys.stderr.write(f"{what}: {ours}, a plain loop {plain}\n")
    alone = None
    for processes in TOGETHER:
        found, memory = shared(processes)
        alone = alone or found
        what = f"training {SHARED.name} in {processes} nodes on one GPU"
        note = f"{name}, {memory:.2f} GiB each"
        rows.append(Row(what, "samples/s", (found,), 0.9, "one node", (alone,), at_least=True, note=note))
    return rows


if __name__ == "__main__":
    main(measure, __doc__ or "", repeats=3)
