"""Client discriminators as section 5.1 writes them: one network a pair (or one for all), dense layers and autograd.

Shared with the system are only the names of its random streams.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from fedgsp.task import Task
from tests.support.reference import stream, stream_seed

HIDDEN = 200

Pair = tuple[int, int]
Batch = tuple[torch.Tensor, torch.Tensor]


class Network(nn.Module):
    """Says of whom a sample and its label are: above 0 the later of a pair, or the largest of an output per client."""

    def __init__(self, features: int, classes: int, outputs: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(stream_seed(seed, "discriminator"))
        self.classes = classes
        self.features = nn.Linear(features, HIDDEN)
        self.labels = nn.Linear(classes, HIDDEN)
        self.output = nn.Linear(HIDDEN, outputs)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        label = nn.functional.one_hot(y, self.classes) * self.classes / math.sqrt(self.classes - 1)
        outputs: torch.Tensor = self.output(torch.relu(self.features(x) + 2 * self.labels(label)))
        return outputs


@dataclass
class Discriminators:
    """The settings; `pairwise` and `shared` return distances, and `left` then holds (exchanges, pairs that go on)."""

    task: Task
    clients: Sequence[int]
    exchanges: int
    batch_size: int
    learning_rate: float
    judge_every: int
    patience: int
    steps: int = 1
    #: Whether all features together weigh what all labels do.
    scale: float = 0.5
    seed: int = 0
    #: Samples that every client trains on; half of the fewest unless given.
    samples: int = 0
    left: list[tuple[int, int]] = field(default_factory=list)

    def pairwise(self, pairs: Iterable[Pair] = ()) -> np.ndarray:
        """Of these pairs, or of all."""
        parts = self._parts()
        found = np.zeros((len(self.clients), len(self.clients)))
        ended: list[int] = []
        for one, other in pairs or itertools.combinations(self.clients, 2):
            network = self._network(1)
            members = {one: (0.0, parts[one]), other: (1.0, parts[other])}

            def loss(
                network: nn.Module, client: int, batch: Batch, members: dict[int, tuple] = members
            ) -> torch.Tensor:  # type: ignore[type-arg]
                logits = network(*batch)[:, 0]
                return nn.functional.binary_cross_entropy_with_logits(
                    logits, torch.full_like(logits, members[client][0])
                )

            best, judgements = -math.inf, []
            for exchange in range(1, self.exchanges + 1):
                network = self._exchanged(network, {c: part for c, (_, part) in members.items()}, exchange, loss)
                if not self._judged_after(exchange):
                    continue
                judgements.append(sum(self._share(network, *pair) for pair in members.values()) - 1)
                if judgements[-1] > best:
                    best, without_gain = judgements[-1], 0
                else:
                    without_gain += 1
                if without_gain == self.patience:
                    break
            ended.append(exchange if without_gain == self.patience else self.exchanges + 1)
            row, column = self.clients.index(one), self.clients.index(other)
            found[row, column] = found[column, row] = best
        judged = [exchange for exchange in range(1, self.exchanges + 1) if self._judged_after(exchange)]
        self.left = [(exchange, sum(end > exchange for end in ended)) for exchange in judged]
        return found

    def shared(self) -> np.ndarray:
        """One judgement, the best in sum, counts for all pairs."""
        parts, count = self._parts(), len(self.clients)
        network = self._network(count)
        best, without_gain = np.full((count, count), -np.inf), 0
        self.left = []

        def loss(network: nn.Module, client: int, batch: Batch) -> torch.Tensor:
            target = torch.full((len(batch[1]),), self.clients.index(client))
            return nn.functional.cross_entropy(network(*batch), target)

        for exchange in range(1, self.exchanges + 1):
            network = self._exchanged(network, parts, exchange, loss)
            if not self._judged_after(exchange):
                continue
            found = self._told_apart(network, parts)
            if found.sum() > best.sum():
                best, without_gain = found, 0
            else:
                without_gain += 1
            self.left.append((exchange, 0 if without_gain == self.patience else count * (count - 1) // 2))
            if without_gain == self.patience:
                break
        return best

    def _judged_after(self, exchange: int) -> bool:
        """The first exchange is, and then every so many."""
        return (exchange - 1) % self.judge_every == 0

    def _told_apart(self, network: nn.Module, parts: dict[int, tuple[Batch, Batch]]) -> np.ndarray:
        found = np.zeros((len(self.clients), len(self.clients)))
        with torch.no_grad():
            outputs = {client: network(*judged).numpy() for client, (_, judged) in parts.items()}
        for (i, one), (j, other) in itertools.combinations(enumerate(self.clients), 2):
            first, second = outputs[one], outputs[other]
            # in a tie the earlier client has it
            accuracies = (first[:, i] >= first[:, j]).mean(), (second[:, j] > second[:, i]).mean()
            found[i, j] = found[j, i] = sum(accuracies) - 1
        return found

    def _exchanged(
        self,
        network: nn.Module,
        parts: dict[int, tuple[Batch, Batch]],
        exchange: int,
        loss: Callable[[nn.Module, int, Batch], torch.Tensor],
    ) -> nn.Module:
        """The plain mean of what the steps of each client make of the network."""
        trained = []
        for client, (training, _) in parts.items():
            mine = copy.deepcopy(network)
            rng = stream(self.seed, "discriminator-batches", exchange - 1, client)
            optimiser, size = torch.optim.SGD(mine.parameters(), lr=self.learning_rate), len(training[1])
            for _ in range(self.steps):
                rows = torch.from_numpy(rng.choice(size, min(self.batch_size, size), replace=False))
                optimiser.zero_grad()
                loss(mine, client, (training[0][rows], training[1][rows])).backward()
                optimiser.step()
            trained.append(mine)
        with torch.no_grad():
            for parameter, *others in zip(network.parameters(), *(mine.parameters() for mine in trained), strict=True):
                parameter.copy_(torch.stack(others).mean(dim=0))
        return network

    def _share(self, network: nn.Module, target: float, part: tuple[Batch, Batch]) -> float:
        with torch.no_grad():
            return float(((network(*part[1])[:, 0] >= 0) == bool(target)).double().mean())

    def _network(self, outputs: int) -> nn.Module:
        x = self.task.data(self.clients[0]).train.x
        return Network(x[0].size, self.task.num_classes, outputs, self.seed)

    def _parts(self) -> dict[int, tuple[Batch, Batch]]:
        """What each client trains on, and what it judges by: both in the label mix of all of it."""
        fewest = min(len(self.task.data(client).train) for client in self.clients)
        return {client: self._split(client, self.samples or fewest // 2) for client in self.clients}

    def _split(self, client: int, samples: int) -> tuple[Batch, Batch]:
        data = self.task.data(client).train
        x, y = torch.from_numpy(data.x.reshape(len(data), -1)), torch.from_numpy(data.y)
        x = x * self.scale
        shuffled = stream(self.seed, "discriminator-split", client).permutation(len(data)).tolist()
        chosen: list[int] = []
        passed = 0
        for label in range(self.task.num_classes):
            of_label = [row for row in shuffled if data.y[row] == label]
            passed += len(of_label)
            chosen += of_label[: round(passed * samples / len(data)) - len(chosen)]
        training = torch.tensor(sorted(chosen))
        rest = torch.tensor([row for row in range(len(data)) if row not in set(chosen)])
        return (x[training], y[training]), (x[rest], y[rest])
