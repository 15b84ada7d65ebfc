"""Client discriminators between exchanges: averaging, early stopping, and accuracies (FedCollab, section 5.1)."""

import abc
import dataclasses
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgsp.discriminators import ESTIMATES, LARGEST, UNKNOWN
from fedgsp.means.averages import Mean
from fedgsp.messages import Discriminated, Discrimination
from fedgsp.tensors.weights import Weights

Floats = NDArray[np.float64]


class Course:
    """How the accuracies of a network developed: what the estimates read of all its judgements."""

    def __init__(self, patience: int) -> None:
        #: Judgements without improvement since the best one.
        self.without_gain = 0
        self.best: Floats | None = None
        self._recent: deque[Floats] = deque(maxlen=patience)

    def add(self, accuracies: Floats, better: bool) -> None:
        """Takes in a judgement; `better` says whether it is better than the best one so far."""
        self._recent.append(accuracies)
        if better:
            self.best, self.without_gain = accuracies, 0
        else:
            self.without_gain += 1

    def read(self, judgements: str) -> Floats | None:
        """The accuracies by these judgements of an estimate; None before the first judgement.

        The window is the last `patience` judgements. When a network stops, they are the ones after the best: the best
        itself was chosen because it is large, so that it is too large on average.
        """
        if self.best is None:
            return None
        if judgements == "largest":
            return self.best
        if judgements == "last":
            return self._recent[-1]
        return np.asarray(np.mean(self._recent, axis=0))


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
        self._judgements = ESTIMATES[plan.estimate].judgements
        #: Client -> number of its samples on which networks are judged.
        self.judged_on: dict[int, int] = {}
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
    def accuracies(self) -> Floats:
        """Shape (N, N): the share of client i's judged samples that the network of pair (i, j) gives to i.

        Rows are in the order of `clients`. The diagonal and pairs that were not compared are NaN.
        """

    def _unknown(self) -> Floats:
        return np.full((len(self.clients), len(self.clients)), np.nan)


class PairedNetworks(Networks):
    """One network per pair. A client holds a stack: the first axis of every tensor counts its pairs."""

    shared = False

    def __init__(self, clients: Sequence[int], plan: Discrimination) -> None:
        super().__init__(clients, plan)
        self._left = set(self.pairs)
        self._courses = {pair: Course(plan.patience) for pair in self.pairs}
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
            del self._courses[pair]
        self._left -= gone
        self._average(trained, places)
        self._judge(judged, places)
        self._starts = {
            client: _rows(stack, [places[client][other] for other in self.others(client)])
            for client, stack in trained.items()
        }

    def accuracies(self) -> Floats:
        """As in the base class, by the judgements of each pair."""
        row = {client: row for row, client in enumerate(self.clients)}
        found = self._unknown()
        for (one, other), course in self._courses.items():
            read = course.read(self._judgements)
            if read is not None:
                found[row[one], row[other]], found[row[other], row[one]] = read
        return found

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
        self.judged_on.update((client, answer.samples) for client, answer in judged.items())
        for one, other in sorted(self._left) if judged else ():
            first, second = judged[one], judged[other]
            if not first.samples or not second.samples:
                self._left.discard((one, other))
                continue
            right = first.correct[places[one][other]], second.correct[places[other][one]]
            accuracies = np.array([right[0] / first.samples, right[1] / second.samples])
            course = self._courses[one, other]
            course.add(accuracies, course.best is None or accuracies.sum() > course.best.sum())
            if course.without_gain >= self._patience:
                self._left.discard((one, other))


class SharedNetwork(Networks):
    """One network with an output per client, from which the distance of every pair is read."""

    shared = True

    def __init__(self, clients: Sequence[int], plan: Discrimination) -> None:
        super().__init__(clients, plan)
        self._there = set(self.clients)
        self._start: Weights | None = None
        self._course = Course(plan.patience)

    @property
    def left(self) -> int:
        """The number of pairs of the remaining clients; 0 once the network no longer improves."""
        if self._course.without_gain >= self._patience:
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
        self.judged_on.update((client, answer.samples) for client, answer in judged.items())
        if judged:
            # Compared over the clients that are there, so that a client that fails is no gain.
            found, best = self._read(judged), self._course.best
            self._course.add(found, best is None or self._total(found) > self._total(best))
        mean = Mean(weighted=False)
        for network in trained.values():
            mean.fold(network)
        if not mean.empty:
            self._start = mean.result()

    def accuracies(self) -> Floats:
        """As in the base class. The best judgement is the one with the largest sum of distances of all pairs."""
        found = self._course.read(self._judgements)
        return self._unknown() if found is None else self._of_those_there(found)

    def _of_those_there(self, accuracies: Floats) -> Floats:
        away = [client not in self._there for client in self.clients]
        found = accuracies.copy()
        found[away], found[:, away] = np.nan, np.nan
        return found

    def _total(self, accuracies: Floats) -> float:
        """The sum of the distances of the pairs that are there; a pair without a judgement counts as 1."""
        there = np.flatnonzero([client in self._there for client in self.clients])
        shares = accuracies[np.ix_(there, there)]
        distances = np.nan_to_num(shares + shares.T - 1, nan=UNKNOWN)
        return float(np.triu(distances, 1).sum())

    def _read(self, judged: Mapping[int, Discriminated]) -> Floats:
        found = self._unknown()
        for row, client in enumerate(self.clients):
            answer = judged.get(client)
            if answer is not None and answer.samples:
                found[row] = np.array(answer.correct) / answer.samples
        np.fill_diagonal(found, np.nan)
        return found


def networks(clients: Sequence[int], plan: Discrimination) -> Networks:
    """Fresh networks for these clients."""
    assert plan.settings is not None
    return (SharedNetwork if plan.settings.shared else PairedNetworks)(clients, plan)


def _rows(stack: Weights, places: list[int]) -> Weights:
    """These rows of a stack, with a digest of their own."""
    if places == list(range(len(next(iter(stack.arrays.values()))))):
        return Weights(stack.tensors, stack.buffer)
    specs = tuple(dataclasses.replace(spec, shape=(len(places), *spec.shape[1:])) for spec in stack.tensors)
    return Weights.of({name: array[places] for name, array in stack.arrays.items()}, specs)
