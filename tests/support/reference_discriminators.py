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
#: Client -> its target, and its batches to learn from and to judge.
Members = dict[int, tuple[float, tuple[Batch, Batch]]]
#: Client -> its batches to learn from and to judge.
Parts = dict[int, tuple[Batch, Batch]]
Accuracies = tuple[float, float]
#: Pair -> the accuracies on both in the best judgement, and then in every judgement.
Judged = dict[Pair, list[Accuracies]]


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
    scale: float = 1.0
    seed: int = 0
    #: Encoded that every client trains on; half of the fewest unless given.
    samples: int = 0
    #: "last" or "largest" judgement, or "cross-fitted": the mean after the best, of two halves, and less by chance.
    estimate: str = "largest"
    left: list[tuple[int, int]] = field(default_factory=list)

    def pairwise(self, pairs: Iterable[Pair] = ()) -> np.ndarray:
        """Of these pairs, or of all."""
        return self._estimated(list(pairs) or self._all_pairs, self._pairwise)

    def shared(self) -> np.ndarray:
        """The best judgement is the best in sum of all pairs."""
        return self._estimated(self._all_pairs, self._shared)

    @property
    def _all_pairs(self) -> list[Pair]:
        return list(itertools.combinations(self.clients, 2))

    def _estimated(self, pairs: list[Pair], learn: Callable[[list[Pair], Parts], Judged]) -> np.ndarray:
        count = len(self.clients)
        found, self.left, halves = np.zeros((count, count)), [], []
        folds = 2 if self.estimate == "cross-fitted" else 1
        for fold in range(folds):
            begun, before = self.left[-1][0] + 1 if self.left else 0, self.left
            self.left = []
            halves.append(learn(pairs, self._parts(fold)))
            later = len(pairs) * (folds - fold - 1)
            self.left = before + [(begun + exchange, going + later) for exchange, going in self.left]
        sizes = {client: tuple(len(part[1]) for part in parts) for client, parts in self._parts(0).items()}
        for one, other in pairs:
            row, column = self.clients.index(one), self.clients.index(other)
            judgements = [half[one, other] for half in halves]
            found[row, column] = found[column, row] = self._distance(judgements, sizes[one], sizes[other])
        return found

    def _distance(self, halves: list[list[Accuracies]], one: tuple[int, ...], other: tuple[int, ...]) -> float:
        """From the accuracies on both clients, in every judgement of each half, the best one first.

        `one` and `other` are numbers of samples: those that train, and those that judge.
        """
        if self.estimate == "largest":
            return sum(halves[0][0]) - 1
        if self.estimate == "last":
            return sum(halves[0][-1]) - 1
        shares, variance = [], 0.0
        for side, (trained, judged) in enumerate((one, other)):
            windows = [half[1:][-self.patience :] for half in halves]
            shares.append(sum(sum(it[side] for it in window) / len(window) for window in windows) / 2)
            count = min(2 * judged, judged + trained)
            smoothed = (shares[side] * count + 1) / (count + 2)
            variance += smoothed * (1 - smoothed) / count
        distance = sum(shares) - 1
        return distance - variance / distance if distance > math.sqrt(variance) else 0.0

    def _pairwise(self, pairs: list[Pair], parts: Parts) -> Judged:
        ended: list[int] = []
        found: Judged = {}
        for one, other in pairs:
            network = self._network(1)
            members = {one: (0.0, parts[one]), other: (1.0, parts[other])}

            def loss(network: nn.Module, client: int, batch: Batch, members: Members = members) -> torch.Tensor:
                logits = network(*batch)[:, 0]
                return nn.functional.binary_cross_entropy_with_logits(
                    logits, torch.full_like(logits, members[client][0])
                )

            best, judgements = (-math.inf, -math.inf), list[Accuracies]()
            for exchange in range(1, self.exchanges + 1):
                network = self._exchanged(network, {c: part for c, (_, part) in members.items()}, exchange, loss)
                if not self._judged_after(exchange):
                    continue
                first, second = (self._share(network, *pair) for pair in members.values())
                judgements.append((first, second))
                if first + second > sum(best):
                    best, without_gain = judgements[-1], 0
                else:
                    without_gain += 1
                if without_gain == self.patience:
                    break
            ended.append(exchange if without_gain == self.patience else self.exchanges + 1)
            found[one, other] = [best, *judgements]
        for exchange in filter(self._judged_after, range(1, self.exchanges + 1)):
            self.left.append((exchange, sum(end > exchange for end in ended)))
            if not self.left[-1][1]:
                break
        return found

    def _shared(self, pairs: list[Pair], parts: Parts) -> Judged:
        network = self._network(len(self.clients))
        judgements: list[dict[Pair, Accuracies]] = []
        best, without_gain = -math.inf, 0

        def loss(network: nn.Module, client: int, batch: Batch) -> torch.Tensor:
            target = torch.full((len(batch[1]),), self.clients.index(client))
            return nn.functional.cross_entropy(network(*batch), target)

        for exchange in range(1, self.exchanges + 1):
            network = self._exchanged(network, parts, exchange, loss)
            if not self._judged_after(exchange):
                continue
            judgements.append(self._told_apart(network, parts))
            if (told := sum(map(sum, judgements[-1].values()))) > best:
                best, best_one, without_gain = told, judgements[-1], 0
            else:
                without_gain += 1
            self.left.append((exchange, 0 if without_gain == self.patience else len(pairs)))
            if without_gain == self.patience:
                break
        return {pair: [best_one[pair], *(judgement[pair] for judgement in judgements)] for pair in pairs}

    def _judged_after(self, exchange: int) -> bool:
        """The first exchange is, and then every so many."""
        return (exchange - 1) % self.judge_every == 0

    def _told_apart(self, network: nn.Module, parts: Parts) -> dict[Pair, Accuracies]:
        found = {}
        with torch.no_grad():
            outputs = {client: network(*judged).numpy() for client, (_, judged) in parts.items()}
        for (i, one), (j, other) in itertools.combinations(enumerate(self.clients), 2):
            first, second = outputs[one], outputs[other]
            # in a tie the earlier client has it
            found[one, other] = (first[:, i] >= first[:, j]).mean(), (second[:, j] > second[:, i]).mean()
        return found

    def _exchanged(
        self,
        network: nn.Module,
        parts: Parts,
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

    def _parts(self, fold: int) -> Parts:
        """What each client trains on, and what it judges by: both in the label mix of all of it."""
        fewest = min(len(self.task.data(client).train) for client in self.clients)
        return {client: self._split(client, self.samples or fewest // 2, fold) for client in self.clients}

    def _split(self, client: int, samples: int, fold: int) -> tuple[Batch, Batch]:
        data = self.task.data(client).train
        x, y = torch.from_numpy(data.x.reshape(len(data), -1)), torch.from_numpy(data.y)
        x = x * self.scale
        shuffled = stream(self.seed, "discriminator-split", client).permutation(len(data)).tolist()
        for _ in range(fold + 1):
            chosen: list[int] = []
            passed = 0
            for label in range(self.task.num_classes):
                of_label = [row for row in shuffled if data.y[row] == label]
                passed += len(of_label)
                chosen += of_label[: round(passed * samples / len(shuffled)) - len(chosen)]
            shuffled = [row for row in shuffled if row not in set(chosen)]
        training = torch.tensor(sorted(chosen))
        rest = torch.tensor([row for row in range(len(data)) if row not in set(chosen)])
        return (x[training], y[training]), (x[rest], y[rest])
