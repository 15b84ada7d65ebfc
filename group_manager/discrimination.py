"""Client discriminators between exchanges: averaging, early stopping, and the distances they give (FedCollab).

The distance of two clients is estimated by how well a network distinguishes their samples: its accuracy on one client
plus its accuracy on the other minus 1, on samples that it was not trained on (section 5.1).
"""

from __future__ import annotations

import abc
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgsp.averages import Mean
from fedgsp.discriminators import LARGEST, UNKNOWN
from fedgsp.messages import Discriminated, Discrimination
from fedgsp.weights import Weights


class Networks(abc.ABC):
    """The discriminators of all clients: networks that learn to tell the samples of two clients apart.

    A subclass has one network for each pair of clients, or one network for all. The object also keeps how accurate
    each network has become. Only `advance`, which takes in the results of one exchange, changes the object.
    """

    #: Whether all clients hold the same network.
    shared: ClassVar[bool]

    def __init__(self, clients: Sequence[int], plan: Discrimination) -> None:
        self.clients = tuple(clients)
        self._patience = plan.patience
        self._like: tuple[tuple[str, tuple[int, ...]], ...] | None = None
        newcomers = set(plan.newcomers)
        self.pairs = [
            (one, other)
            for position, one in enumerate(self.clients)
            for other in self.clients[position + 1 :]
            if not newcomers or one in newcomers or other in newcomers
        ]

    @property
    @abc.abstractmethod
    def left(self) -> int:
        """Pairs whose networks still learn."""

    @abc.abstractmethod
    def others(self, client: int) -> tuple[int, ...]:
        """The clients that a client's next order names; empty if it has nothing more to do."""

    @abc.abstractmethod
    def start(self, client: int) -> Weights | None:
        """The networks from which a client continues; None for fresh networks."""

    def fits(self, client: int, networks: Weights) -> bool:
        """Whether a client can have trained these: the number of networks is right, and no weight out of bounds."""
        rows = 1 if self.shared else len(self.others(client))
        return bool(networks.tensors) and all(
            array.dtype == np.float32
            and array.ndim > 1
            and len(array) == rows
            and array.size
            and -LARGEST <= array.min() <= array.max() <= LARGEST
            for array in networks.arrays.values()
        )

    def strangers(self, trained: Mapping[int, Weights]) -> set[int]:
        """Clients whose networks have other tensors than those of most clients in the first exchange."""
        like = {
            client: tuple((spec.name, spec.shape[1:]) for spec in networks.tensors)
            for client, networks in trained.items()
        }
        if self._like is None and like:
            self._like = Counter(like.values()).most_common(1)[0][0]
        return {client for client, tensors in like.items() if tensors != self._like}

    @abc.abstractmethod
    def advance(self, judged: Mapping[int, Discriminated], trained: Mapping[int, Weights], failed: set[int]) -> None:
        """Takes in an exchange: the clients' judgements of their starts, if asked for, and the networks they trained.

        Averages the networks, which must fit, and stops networks that no longer improve.
        """

    @abc.abstractmethod
    def distance(self, one: int, other: int) -> float:
        """The distance of a pair, in -1..1; UNKNOWN if both have never judged its network."""

    def matrix(self) -> NDArray[np.float64]:
        """The distances between the data of N clients, shape (N, N), rows in the order of `clients`.

        The matrix is symmetric, with 0 on the diagonal. A pair that was not compared has UNKNOWN, which is 1.
        """
        row = {client: row for row, client in enumerate(self.clients)}
        found = np.full((len(row), len(row)), UNKNOWN)
        np.fill_diagonal(found, 0.0)
        for one, other in self.pairs:
            found[row[one], row[other]] = found[row[other], row[one]] = self.distance(one, other)
        return found


class PairedNetworks(Networks):
    """One network per pair. A client holds a stack: the first axis of every tensor counts its pairs."""

    shared = False

    def __init__(self, clients: Sequence[int], plan: Discrimination) -> None:
        super().__init__(clients, plan)
        self._left = set(self.pairs)
        self._best: dict[tuple[int, int], float] = {}
        self._without_gain = dict.fromkeys(self.pairs, 0)
        self._starts: dict[int, Weights] = {}

    @property
    def left(self) -> int:
        """Pairs that have neither stopped nor failed."""
        return len(self._left)

    def others(self, client: int) -> tuple[int, ...]:
        """The other clients of its pairs, in the order of the networks in its stack."""
        return tuple(other for other in self.clients if (client, other) in self._left or (other, client) in self._left)

    def start(self, client: int) -> Weights | None:
        """The client's stack of networks, averaged after the last exchange."""
        return self._starts.get(client)

    def advance(self, judged: Mapping[int, Discriminated], trained: Mapping[int, Weights], failed: set[int]) -> None:
        """As in the base class. Pairs with a failed client are dropped, because they were not trained to the end."""
        places = {client: {other: at for at, other in enumerate(self.others(client))} for client in self.clients}
        gone = {pair for pair in self._left if failed.intersection(pair)}
        for pair in gone:
            self._best.pop(pair, None)
        self._left -= gone
        self._average(trained, places)
        self._judge(judged, places)
        self._starts = {
            client: _rows(stack, [places[client][other] for other in self.others(client)])
            for client, stack in trained.items()
        }

    def distance(self, one: int, other: int) -> float:
        """The largest distance in all judgements of the pair."""
        return self._best.get((one, other), UNKNOWN)

    def _average(self, trained: Mapping[int, Weights], places: Mapping[int, Mapping[int, int]]) -> None:
        """Averages in place: afterwards both stacks of a pair hold the mean."""
        for one, other in self._left if trained else ():
            first, second = trained[one].arrays, trained[other].arrays
            for name in first:
                mine, theirs = first[name][places[one][other]], second[name][places[other][one]]
                mine += theirs
                mine *= 0.5
                theirs[...] = mine

    def _judge(self, judged: Mapping[int, Discriminated], places: Mapping[int, Mapping[int, int]]) -> None:
        for one, other in sorted(self._left) if judged else ():
            first, second = judged[one], judged[other]
            if not first.samples or not second.samples:
                self._left.discard((one, other))
                continue
            distance = _distance(first, places[one][other], second, places[other][one])
            if distance > self._best.get((one, other), -np.inf):
                self._best[one, other], self._without_gain[one, other] = distance, 0
                continue
            self._without_gain[one, other] += 1
            if self._without_gain[one, other] >= self._patience:
                self._left.discard((one, other))


class SharedNetwork(Networks):
    """One network with an output per client, from which the distance of every pair is read."""

    shared = True

    def __init__(self, clients: Sequence[int], plan: Discrimination) -> None:
        super().__init__(clients, plan)
        self._there = set(self.clients)
        self._start: Weights | None = None
        self._judged: Mapping[int, Discriminated] = {}  # at the best judgement
        self._without_gain = 0

    @property
    def left(self) -> int:
        """The number of pairs of the remaining clients; 0 once the network no longer improves."""
        if self._without_gain >= self._patience:
            return 0
        return sum(self._there.issuperset(pair) for pair in self.pairs)

    def others(self, client: int) -> tuple[int, ...]:
        """All clients, also those that failed, because each output of the network belongs to a fixed client."""
        return self.clients if client in self._there and self.left else ()

    def start(self, client: int) -> Weights | None:
        """The shared network."""
        return self._start

    def advance(self, judged: Mapping[int, Discriminated], trained: Mapping[int, Weights], failed: set[int]) -> None:
        """As in the base class. The mean is plain, because all clients train on equally many samples."""
        self._there -= failed
        if judged:
            # Compared over the clients that are there, so that a client that fails is no gain.
            if not self._judged or self._total(judged) > self._total(self._judged):
                self._judged, self._without_gain = dict(judged), 0
            else:
                self._without_gain += 1
        mean = Mean(weighted=False)
        for network in trained.values():
            mean.fold(network)
        if not mean.empty:
            self._start = mean.result()

    def distance(self, one: int, other: int) -> float:
        """The distance according to the best judgement: the one with the largest sum over all clients."""
        return self._read(self._judged, one, other) if self._there.issuperset((one, other)) else UNKNOWN

    def _total(self, judged: Mapping[int, Discriminated]) -> float:
        return sum(self._read(judged, *pair) for pair in self.pairs if self._there.issuperset(pair))

    def _read(self, judged: Mapping[int, Discriminated], one: int, other: int) -> float:
        first, second = judged.get(one), judged.get(other)
        if first is None or second is None or not first.samples or not second.samples:
            return UNKNOWN
        return _distance(first, self.clients.index(other), second, self.clients.index(one))


def networks(clients: Sequence[int], plan: Discrimination) -> Networks:
    """Fresh networks for these clients."""
    assert plan.settings is not None
    return (SharedNetwork if plan.settings.shared else PairedNetworks)(clients, plan)


def _distance(first: Discriminated, at_first: int, second: Discriminated, at_second: int) -> float:
    return first.correct[at_first] / first.samples + second.correct[at_second] / second.samples - 1


def _rows(stack: Weights, places: list[int]) -> Weights:
    """These rows of a stack, with a digest of their own."""
    if places == list(range(len(next(iter(stack.arrays.values()))))):
        return Weights(stack.tensors, stack.buffer)
    specs = tuple(dataclasses.replace(spec, shape=(len(places), *spec.shape[1:])) for spec in stack.tensors)
    return Weights.of({name: array[places] for name, array in stack.arrays.items()}, specs)
