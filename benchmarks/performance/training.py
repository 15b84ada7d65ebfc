"""Compares the samples per second of every training algorithm with plain torch loops.

The plain loops use `loss.backward()` and `torch.optim`. They add proximal terms to the gradients instead of the
loss, which is faster. Both run in turn in one process on one thread. Times are CPU times, because other processes run
too; the figures are medians. Each sample of the client counts once per epoch, whatever number of gradients the
algorithm takes of it. The models are LEAF's CNN for FEMNIST and an MLP, and variants of them: with a frozen matrix in
each dense layer and two thin matrices that train (LoRA), and with all parameters in bfloat16. finetune is left out,
because it trains with the same function as sgd.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.performance.rows import Row, main
from fedgsp import ClientData, Task
from fedgsp.messages import OptimizerSettings, TrainingSettings
from fedgsp.settings.fields import values_of
from fedgsp.trainings import TRAININGS
from fedgsp_node.model.arrays import array_of
from fedgsp_node.model.torch_weights import bind, weights_of
from fedgsp_node.optimizers import stepping
from fedgsp_node.samples import Samples
from fedgsp_node.training.base import LocalWork
from fedgsp_node.training.control import Control

RATE = 0.01
#: The same training ends so near, as a share of its way: it only rounds otherwise, in float64 or more coarsely.
SAME, COARSELY_SAME = 1e-9, 1e-3
#: The row of `--precision bfloat16`.
AUTOCAST = "adamw in bfloat16 (autocast)"
AS_QUICK = 0.98
#: Rows in which sgd takes its steps by an optimiser of torch, and what each computes in.
OPTIMIZERS = {"adamw": OptimizerSettings("adamw"), AUTOCAST: OptimizerSettings("adamw", precision="bfloat16")}
AS_QUICK_BY_TORCH = 0.95
QUICKER = {("LEAF's CNN", "sgd"): 1.2}
Options = dict[str, int | float]
Batches = list[tuple[torch.Tensor, torch.Tensor]]


class CharacterCnn(Task):
    num_classes, num_clients = 62, 1

    def model(self) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(1, 32, 5, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * 7 * 7, 2048), nn.ReLU(), nn.Linear(2048, 62)),
        )

    def data(self, client: int) -> ClientData:
        raise AssertionError("never asked for")


class Mlp(CharacterCnn):
    num_classes = 10

    def model(self) -> nn.Module:
        layers = (nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
        return nn.Sequential(nn.Flatten(), *layers)


class _LowRank(nn.Module):
    """A dense layer whose matrix is frozen, plus a product of two thin matrices that train (LoRA, of rank 8)."""

    def __init__(self, whole: nn.Linear) -> None:
        super().__init__()
        self.whole = whole.requires_grad_(False)
        self.down = nn.Linear(whole.in_features, 8, bias=False)
        self.up = nn.Linear(8, whole.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.whole(x) + self.up(self.down(x))
        return found


class LowRankMlp(Mlp):
    """The dense layers of the MLP as LoRA has them."""

    def model(self) -> nn.Module:
        layers = super().model()
        return nn.Sequential(*(_LowRank(one) if isinstance(one, nn.Linear) else one for one in layers.children()))


class NarrowMlp(Mlp):
    """The MLP with all parameters in bfloat16."""

    def model(self) -> nn.Module:
        return super().model().bfloat16()


def plain_sgd(
    module: nn.Module,
    batches: Batches,
    towards: list[torch.Tensor] | None = None,
    strength: float = 0.0,
    kind: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    autocast: bool = False,
) -> None:
    optimiser = kind([one for one in module.parameters() if one.requires_grad], lr=RATE)
    for x, y in batches:
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        if towards is not None:
            for parameter, anchor in zip(module.parameters(), towards, strict=True):
                assert parameter.grad is not None
                parameter.grad.add_(parameter.detach() - anchor, alpha=strength)
        optimiser.step()
        loss.item()


def plain_fedprox(module: nn.Module, batches: Batches, options: Options) -> None:
    plain_sgd(module, batches, [parameter.detach().clone() for parameter in module.parameters()], options["mu"])


def plain_per_fedavg(module: nn.Module, batches: Batches, options: Options) -> None:
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    before = [torch.empty_like(parameter) for parameter in module.parameters()]
    for x, y in batches:
        half = len(x) // 2
        with torch.no_grad():
            torch._foreach_copy_(before, list(module.parameters()))
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(module(x[:half]), y[:half])
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x[half:]), y[half:]).backward()
        with torch.no_grad():
            torch._foreach_copy_(list(module.parameters()), before)
        optimiser.step()
        loss.item()


def plain_pfedme(module: nn.Module, batches: Batches, options: Options) -> None:
    optimiser = torch.optim.SGD(module.parameters(), lr=options["personal_rate"])
    shared = [parameter.detach().clone() for parameter in module.parameters()]
    for x, y in batches:
        with torch.no_grad():
            torch._foreach_copy_(list(module.parameters()), shared)
        for _ in range(int(options["personal_steps"])):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(module(x), y)
            loss.backward()
            for parameter, anchor in zip(module.parameters(), shared, strict=True):
                assert parameter.grad is not None
                parameter.grad.add_(parameter.detach() - anchor, alpha=options["lambda"])
            optimiser.step()
            loss.item()
        for parameter, anchor in zip(module.parameters(), shared, strict=True):
            anchor.sub_(anchor - parameter.detach(), alpha=RATE * options["lambda"])
    with torch.no_grad():
        torch._foreach_copy_(list(module.parameters()), shared)


def plain_ditto(module: nn.Module, batches: Batches, options: Options) -> None:
    received = [parameter.detach().clone() for parameter in module.parameters()]
    personal = copy.deepcopy(module)
    plain_sgd(module, batches)
    plain_sgd(personal, batches, received, options["lambda"])


PLAIN: dict[str, Callable[[nn.Module, Batches, Options], None]] = {
    "sgd": lambda module, batches, _: plain_sgd(module, batches),
    "adamw": lambda module, batches, _: plain_sgd(module, batches, kind=torch.optim.AdamW),
    AUTOCAST: lambda module, batches, _: plain_sgd(module, batches, kind=torch.optim.AdamW, autocast=True),
    "fedprox": plain_fedprox,
    "per-fedavg": plain_per_fedavg,
    "pfedme": plain_pfedme,
    "ditto": plain_ditto,
}


class Compared(NamedTuple):
    """One local epoch: seconds of FedGSP and of the plain loop, and how far apart they end, as a share of the way."""

    ours: float
    plain: float
    apart: float


def compared(algorithm: str, task: Task, x: torch.Tensor, y: torch.Tensor, batch_size: int) -> Compared:
    name, optimizer = ("sgd", OPTIMIZERS[algorithm]) if algorithm in OPTIMIZERS else (algorithm, None)
    training = TRAININGS[name]
    settings, options = TrainingSettings(name, 1, batch_size, RATE, seed=0), training.read({})
    torch.manual_seed(0)
    module = task.model().to(x.dtype)
    received = weights_of(module)
    personal = received.copy() if training.keeps_personal else None
    trained = received.copy()
    bind(module, trained)
    rng = np.random.default_rng(0)
    how = stepping(optimizer, task)
    work = LocalWork(module, task, Samples(x, y), settings, options, rng, Control(), received, personal, stepping=how)
    train = training.load().train
    begin = time.process_time()
    train(work)
    ours = time.process_time() - begin
    torch.manual_seed(0)
    module = task.model().to(x.dtype).train()
    begin = time.process_time()
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(x)))
    PLAIN[algorithm](module, [(x[rows], y[rows]) for rows in torch.split(order, batch_size)], values_of(options))
    plain = time.process_time() - begin
    expected = {name: array_of(one) for name, one in module.named_parameters()}
    apart = distance(trained.arrays, expected) / distance(trained.arrays, received.arrays)
    return Compared(ours, plain, apart)


def distance(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """The Euclidean distance between two models."""
    squares = (np.sum((array.astype(np.float64) - other[name].astype(np.float64)) ** 2) for name, array in one.items())
    return float(np.sqrt(sum(squares)))


#: Name of the model, task, batch size, samples, and the rows.
MODELS: list[tuple[str, Task, int, int, Sequence[str]]] = [
    ("LEAF's CNN", CharacterCnn(), 5, 100, list(PLAIN)),
    ("an MLP", Mlp(), 32, 3200, list(PLAIN)),
    ("an MLP with LoRA", LowRankMlp(), 32, 3200, ("sgd", "adamw")),
    ("an MLP in bfloat16", NarrowMlp(), 32, 3200, ("sgd", "adamw")),
]


def limit(model: str, task: Task, algorithm: str) -> float:
    """The least ratio to the plain loop."""
    by_torch = algorithm in OPTIMIZERS or isinstance(task, LowRankMlp | NarrowMlp)
    return QUICKER.get((model, algorithm), AS_QUICK_BY_TORCH if by_torch else AS_QUICK)


def measure(repeats: int) -> list[Row]:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for model, task, batch_size, count, algorithms in MODELS:
        x = torch.randn(count, 1, 28, 28, generator=generator)
        x = x.bfloat16() if isinstance(task, NarrowMlp) else x
        y = torch.randint(0, task.num_classes, (count,), generator=generator)
        few = 10 * batch_size
        for algorithm in algorithms:
            # In float32 a rounding error may grow: pFedMe's personal steps are large.
            exact = x.double() if x.dtype == torch.float32 and algorithm != AUTOCAST else x
            apart = compared(algorithm, task, exact[:few], y[:few], batch_size).apart
            same = SAME if exact.dtype == torch.float64 else COARSELY_SAME
            assert apart < same, f"{model}, {algorithm}: not the same training, {apart:.2g} apart"
            compared(algorithm, task, x[:few], y[:few], batch_size)  # to warm up
            pairs = [compared(algorithm, task, x, y, batch_size) for _ in range(repeats)]
            ours, plain = (tuple(count / one.ours for one in pairs), tuple(count / one.plain for one in pairs))
            rows.append(
                Row(
                    f"training {model}, batch {batch_size}, {algorithm}",
                    "samples/s",
                    ours,
                    limit(model, task, algorithm),
                    "a plain loop",
                    plain,
                    at_least=True,
                )
            )
    return rows


if __name__ == "__main__":
    main(measure, __doc__ or "", repeats=7)
