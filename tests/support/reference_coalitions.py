"""FedCollab, what it is compared with, and the ways to train inside, once more: what runs must equal, bit for bit.

Shared with the system: groupings, which have oracles of their own, and the names of random streams. Written again:
local training (copies of modules, torch.optim.SGD), aggregation, personal models, clusters, who starts from what.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from tests.support.reference import State, as_numpy, cast, is_float, stream, stream_seed, weighted_mean
from tests.support.reference_groups import Arrays, GroupReference, Partition, Played
from top_server.grouping import GROUPINGS, GroupingRequest

#: Fewer samples than this are no batch for Per-FedAvg.
HALVED = 4

Batch = tuple[torch.Tensor, torch.Tensor]


class Learnt(NamedTuple):
    """A client's result, and by what FedNova divides its update."""

    state: State
    steps: float


@dataclass
class CoalitionReference(GroupReference):
    """The settings of a run; each `play_...` returns its rounds. Accuracies are those of personalised models."""

    training: str = "sgd"
    #: All options of the training, or its defaults.
    numbers: Mapping[str, Any] = field(default_factory=dict)
    aggregation: str = "mean"
    #: (round, client) whose personal model is gone once it has trained in that round.
    forgotten: Collection[tuple[int, int]] = ()
    personal: dict[int, State] = field(default_factory=dict)

    # --- who with whom

    def play_together(self) -> list[Played]:
        """One model of everybody."""
        return self._play(lambda *_: [sorted(self.clients)])

    def play_fedcollab(self, distances: np.ndarray) -> list[Played]:
        """Coalitions from known distances."""
        return self.play_coalitions(self.coalitions(distances))

    def coalitions(self, distances: np.ndarray) -> Partition:
        return self._regrouped("fedcollab", 1, {"distances": distances})

    def play_coalitions(self, coalitions: Partition) -> list[Played]:
        return self._play(lambda *_: coalitions)

    def play_fedcluster(self) -> list[Played]:
        """Each cluster applies the plain mean of its members' updates."""

        def grouped(number: int, before: Partition, updates: Mapping[int, State]) -> Partition:
            shown = [updates[client] for client in sorted(updates)]
            evidence = {"gram": self._gram(shown, None)} if shown else {}
            return self._regrouped("fedcluster", number, evidence, before)

        return self._play(grouped, weigh=lambda group: [1] * len(group))

    def play_kmeans(self, prior_epochs: int) -> list[Played]:
        """Clusters of what clients learn alone, then FedAvg in each."""
        initial = self.initial()
        priors = [GroupReference.train(self, initial, client, 1, prior_epochs) for client in sorted(self.clients)]
        clusters = self._regrouped("kmeans", 1, {"gram": self._gram(priors, None)})
        return self.play_coalitions(clusters)

    def play_fesem(self, models: int) -> list[Played]:
        """Clusters by the nearest model, trained from the mean of the members' own; the first choice is drawn."""
        clients, clusters = sorted(self.clients), self._clusters(models)
        rng = stream(self.seed, "model-distances", 1)
        chosen = dict(zip(clients, rng.integers(models, size=len(clients)).tolist(), strict=True))
        own: dict[int, State] = {}
        rounds = []
        for number in range(1, self.rounds + 1):
            for client, state in own.items():
                chosen[client] = int(np.argmin([_apart(cluster, state) for cluster in clusters]))
            groups = []
            for cluster in sorted(set(chosen.values())):
                group = [client for client in clients if chosen[client] == cluster]
                known = [own[client] for client in group if client in own]
                start = weighted_mean(known, [1] * len(known)) if known else clusters[cluster]
                own.update({client: self.learn(start, client, number).state for client in group})
                clusters[cluster] = weighted_mean([own[client] for client in group], [1] * len(group))
                groups.append(group)
            rounds.append(self.served(groups, {c: clusters[chosen[c]] for c in clients}, number))
        return rounds

    def _play(
        self,
        grouped: Callable[[int, Partition, Mapping[int, State]], Partition],
        weigh: Callable[[list[int]], list[int]] | None = None,
    ) -> list[Played]:
        models = dict.fromkeys(sorted(self.clients), self.initial())
        groups: Partition = []
        updates: dict[int, State] = {}
        rounds = []
        for number in range(1, self.rounds + 1):
            groups = grouped(number, groups, updates)
            for group in groups:
                start = models[group[0]]
                learnt = [self.learn(start, client, number) for client in group]
                for client, (state, _) in zip(group, learnt, strict=True):
                    updates[client] = self._update(start, state, number, [])
                weights = (weigh or self._sizes)(group)
                models.update(dict.fromkeys(group, self._aggregated(start, learnt, weights)))
            rounds.append(self.served(groups, models, number))
        return rounds

    def _aggregated(self, start: State, learnt: list[Learnt], weights: list[int]) -> State:
        states = [state for state, _ in learnt]
        if len(states) == 1:
            return states[0]
        if self.aggregation == "mean":
            return weighted_mean(states, weights)
        return self._fednova(start, learnt, weights)

    def _fednova(self, start: State, learnt: list[Learnt], weights: list[int]) -> State:
        """w + tau_eff sum p_k d_k, rounded as the system does: from the start towards the mean by n_k / tau_k."""
        states, steps = [state for state, _ in learnt], [count for _, count in learnt]
        shares = [weight / count for weight, count in zip(weights, steps, strict=True)]
        exact = [{name: a.astype(np.float64) if is_float(a) else a for name, a in s.items()} for s in states]
        result = weighted_mean(exact, shares)
        total = sum(weights)
        reach = sum(n * tau for n, tau in zip(weights, steps, strict=True)) * sum(shares) / total**2
        for name, _ in self.task.model().named_parameters():
            before = start[name].astype(np.float64)
            moved = before + reach * (result[name] - before)
            effective = sum(n / total * tau for n, tau in zip(weights, steps, strict=True))
            normalised = [(state[name].astype(np.float64) - before) / tau for state, tau in learnt]
            step = sum(n / total * d for n, d in zip(weights, normalised, strict=True))
            np.testing.assert_allclose(moved, before + effective * step, rtol=1e-4, atol=1e-6)
            result[name] = moved
        return {name: cast(array, start[name].dtype) for name, array in result.items()}

    def _regrouped(self, grouping: str, number: int, evidence: Arrays, before: Partition | None = None) -> Partition:
        clients = sorted(self.clients)
        request = GroupingRequest(
            round=number,
            groups=1,
            seed=self.seed,
            clients=tuple(clients),
            sizes=np.array(self._sizes(clients)),
            matrices=evidence,
            options=self.options,
            settled=tuple(map(tuple, before or ())),
            learning_rate=self._rate(number - 1),
        )
        return [list(group) for group in GROUPINGS[grouping](request).groups]

    def served(self, groups: Partition, models: Mapping[int, State], number: int) -> Played:
        accuracy = {c: self._right(self.personalised(state, c, number), c, "test") for c, state in models.items()}
        return Played([list(group) for group in groups], dict(models), accuracy)

    # --- local training

    def train(self, state: State, client: int, number: int, epochs: int | None = None) -> State:
        assert epochs is None
        return self.learn(state, client, number).state

    def learn(self, state: State, client: int, number: int) -> Learnt:
        """Trains from a model, and moves the client's personal model on if the algorithm has one."""
        rate, module = self._rate(number), self.module(state)
        torch.manual_seed(stream_seed(self.seed, "training", number, client))
        rng = stream(self.seed, "batch-order", number, client)
        personal: nn.Module | None = None
        match self.training:
            case "fedprox":
                steps = self._near(module, self.batches(client, rng), rate, copy.deepcopy(module), self.numbers["mu"])
            case "ditto":
                received = copy.deepcopy(module)
                steps = self._near(module, self.batches(client, rng), rate)
                personal = self.module(self.personal.get(client, state))
                self._near(personal, self.batches(client, rng), rate, received, self.numbers["lambda"])
            case "per-fedavg":
                steps = self._halves(module, self.batches(client, rng), rate)
            case "pfedme":
                steps, personal = self._thetas(module, self.batches(client, rng), rate)
            case _:
                steps = self._near(module, self.batches(client, rng), rate)
        if personal is not None:
            self.personal[client] = _state(personal)
        if self.training == "own-head":
            self.personal[client] = dict(list(_state(module).items())[-2:])  # of its last dense layer
        if (number, client) in self.forgotten:
            del self.personal[client]
        return Learnt(_state(module), steps)

    def personalised(self, state: State, client: int, number: int) -> State:
        """What a client uses of its group's model."""
        if self.training not in ("finetune", "per-fedavg"):
            return {**state, **self.personal.get(client, {})}
        module, left = self.module(state), int(self.numbers["steps"])
        torch.manual_seed(stream_seed(self.seed, "adaptation", number, client))
        rng = stream(self.seed, "adaptation-order", number, client)
        while left:
            batches = list(self.batches(client, rng, 1))[:left]
            self._near(module, iter(batches), self._rate(number))
            left -= len(batches)
        return _state(module)

    def batches(self, client: int, rng: np.random.Generator, epochs: int | None = None) -> Iterator[Batch]:
        data = self.task.data(client).train
        for _ in range(epochs or self.local_epochs):
            order = rng.permutation(len(data))
            for begin in range(0, len(data), self.batch_size):
                rows = order[begin : begin + self.batch_size]
                yield torch.from_numpy(data.x[rows]), torch.from_numpy(data.y[rows])

    def _near(
        self,
        module: nn.Module,
        batches: Iterator[Batch],
        rate: float,
        anchor: nn.Module | None = None,
        strength: float = 0.0,
    ) -> float:
        """SGD on the loss + strength/2 ||w - anchor||^2; returns the sum of what later steps leave of each."""
        left = 0.0
        for batch in batches:
            self._step(module, batch, rate, anchor, strength)
            left = (1 - rate * strength) * left + 1
        return left

    def _step(
        self, module: nn.Module, batch: Batch, rate: float, anchor: nn.Module | None = None, strength: float = 0.0
    ) -> None:
        module.train()
        optimiser = torch.optim.SGD(module.parameters(), lr=rate)
        self._differentiate(module, batch)
        if anchor is not None:
            _pull(module, anchor, rate * strength)  # the gradient was taken before, so both parts of the loss count
        optimiser.step()

    def _differentiate(self, module: nn.Module, batch: Batch) -> None:
        module.zero_grad()
        x, y = batch
        self.task.loss(module(x), y).backward()

    def _halves(self, module: nn.Module, batches: Iterator[Batch], rate: float) -> float:
        count = 0
        for x, y in batches:
            half = len(x) // 2
            if len(x) < HALVED:
                continue
            ahead = copy.deepcopy(module)
            self._step(ahead, (x[:half], y[:half]), rate)
            self._differentiate(ahead, (x[half:], y[half:]))
            for parameter, other in zip(module.parameters(), ahead.parameters(), strict=True):
                parameter.grad = other.grad
            torch.optim.SGD(module.parameters(), lr=rate).step()
            _take_buffers(module, ahead)
            count += 1
        return count or 1

    def _thetas(self, module: nn.Module, batches: Iterator[Batch], rate: float) -> tuple[float, nn.Module]:
        count, theta, strength = 0, module, self.numbers["lambda"]
        for batch in batches:
            theta = copy.deepcopy(module)
            for _ in range(int(self.numbers["personal_steps"])):
                self._step(theta, batch, self.numbers["personal_rate"], module, strength)
            _pull(module, theta, rate * strength)
            _take_buffers(module, theta)
            count += 1
        return count, theta


def _pull(module: nn.Module, anchor: nn.Module, share: float) -> None:
    with torch.no_grad():
        for parameter, target in zip(module.parameters(), anchor.parameters(), strict=True):
            parameter.copy_(torch.lerp(parameter, target, share))


def _take_buffers(module: nn.Module, other: nn.Module) -> None:
    for buffer, value in zip(module.buffers(), other.buffers(), strict=True):
        buffer.copy_(value)


def _apart(some: State, other: State) -> float:
    return sum(float(((some[n].astype(np.float64) - other[n].astype(np.float64)) ** 2).sum()) for n in some)


def _state(module: nn.Module) -> State:
    return {name: as_numpy(tensor.detach()).copy() for name, tensor in module.state_dict().items()}
