"""Independent schemes with a model per client, group or cluster: what distributed runs must equal, bit for bit.

Local SGD is that of `Reference`; groupings and weighings are shared with the system: pure functions with oracles of
their own. Updates, inner products, layers, means, heads, losses, clusters and who starts from what are written again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tests.support.cluster import Finished
from tests.support.reference import Reference, State, as_torch, assert_same_bits, stream, stream_seed, weighted_mean
from top_server.grouping import GROUPINGS, GroupingRequest
from top_server.merging.weighing import WEIGHINGS
from top_server.record.model_files import load

#: Samples evaluated at a time; it decides the order in which losses are added up.
EVALUATED_TOGETHER = 256

Arrays = Mapping[str, np.ndarray]
Partition = list[list[int]]


@dataclass(frozen=True)
class Played:
    """A round: who trained with whom, and afterwards each client's model (without a head that stays) and accuracy."""

    partition: Partition
    models: dict[int, State]
    accuracy: dict[int, float]


@dataclass
class GroupReference(Reference):
    """The settings of a run; each `play_...` returns its rounds."""

    decay: float = 1.0
    #: Clients that join before a round; all others are there from the start.
    joins: Mapping[int, int] | None = None
    #: (round, client) whose own model is gone when its group is to start; HCCT only.
    lost: Collection[tuple[int, int]] = ()
    #: Newcomers that cannot train as they are welcomed; HCCT only.
    stumbling: Collection[int] = ()

    # --- a model per group

    def play_hcct(
        self, view: str = "exact", personal: bool = False, similarity_of: str = "shared", newcomers: str = "mean"
    ) -> list[Played]:
        """HCCT: `view` is exact or layer; with `personal` every client keeps its last dense layer to itself."""
        initial = self.initial()
        head = _last_layer(self.task.model()) if personal else []
        shared, own = _split(initial, head)
        shared = self.handed_on(shared)
        hidden = head if similarity_of == "shared" else []
        models, heads = dict.fromkeys(self._there(1), shared), dict.fromkeys(self.clients, own)
        updates: dict[int, State] = {}
        layer: list[str] | None = None
        rounds = []
        for number in range(1, self.rounds + 1):
            there = self._there(number)
            new = [client for client in there if client not in models]
            if number == 2 and view == "layer":
                layer = _most_varied_layer([updates[client] for client in sorted(updates)])
            start = self._mean_of_models(models, sorted(models)) if newcomers == "mean" else shared
            for client in new:
                after = self.train({**start, **own}, client, number)
                updates[client] = self._update({**start, **own}, after, number, hidden)
                if client in self.stumbling:
                    updates[client] = {name: np.full_like(array, np.nan) for name, array in updates[client].items()}
                models[client] = start
            gram = self._gram([updates[client] for client in there], layer) if number > 1 else None
            groups = self._grouped("hcct", number, there, {} if gram is None else {"gram": gram}, new)
            for group in groups:
                left = [client for client in group if (number, client) not in self.lost]
                start = self.handed_on(self._mean_of_models(models, left))
                results = []
                for client in group:
                    whole = {**start, **heads[client]}
                    after = self.train(whole, client, number)
                    updates[client] = self._update(whole, after, number, hidden)
                    result, heads[client] = _split(after, head)
                    results.append(self.handed_on(result))
                merged = weighted_mean(results, self._sizes(group)) if len(group) > 1 else results[0]
                models.update(dict.fromkeys(group, self.handed_on(merged)))
            # Those who came meanwhile have no model yet that could serve them.
            rounds.append(self._played(groups, models, heads))
        return rounds

    def play_independent(self) -> list[Played]:
        models = dict.fromkeys(self.clients, self.initial())
        rounds = []
        for number in range(1, self.rounds + 1):
            models = {client: self.train(models[client], client, number) for client in self.clients}
            rounds.append(self._played([[client] for client in self.clients], models))
        return rounds

    def play_maxfl_hcct(self, prior_epochs: int) -> list[Played]:
        initial = self.initial()
        models = dict.fromkeys(self.clients, initial)
        priors = {client: self.train(initial, client, 1, prior_epochs) for client in self.clients}
        rounds = []
        for number in range(1, self.rounds + 1):
            evidence = {}
            if number > 1:
                mean = self._mean_of_models(models, sorted(models))
                evidence = {
                    "train_loss": _column(self._loss(mean, client) for client in self.clients),
                    "prior_distance": _column(_squared_distance(mean, priors[client]) for client in self.clients),
                }
            groups = self._grouped("maxfl-hcct", number, sorted(self.clients), evidence)
            for group in groups:
                start = self._mean_of_models(models, group)
                results = [self.train(start, client, number) for client in group]
                merged = weighted_mean(results, self._sizes(group)) if len(group) > 1 else results[0]
                models.update(dict.fromkeys(group, merged))
            rounds.append(self._played(groups, models))
        return rounds

    # --- one model

    def play_global(self) -> list[Played]:
        return self._play_one_model(lambda model: self._sizes(self.clients))

    def play_fedfa(self) -> list[Played]:
        return self._play_one_model(self.by_accuracy)

    def by_accuracy(self, model: State) -> list[float]:
        """FedFA's weights of the clients."""
        return self._weighed("fedfa", train_accuracy=[self._right(model, c, "train") for c in self.clients])

    def play_maxfl(self, prior_epochs: int) -> list[Played]:
        initial = self.initial()
        prior_losses = [self._loss(self.train(initial, c, 1, prior_epochs), c) for c in self.clients]

        def weigh(model: State) -> list[float]:
            losses = [self._loss(model, client) for client in self.clients]
            return self._weighed("maxfl", train_loss=losses, prior_loss=prior_losses)

        return self._play_one_model(weigh)

    def _play_one_model(self, weigh: Callable[[State], list[Any]]) -> list[Played]:
        model, rounds = self.initial(), []
        for number in range(1, self.rounds + 1):
            weights = weigh(model)
            results = [self.train(model, client, number) for client in self.clients]
            counted = [(state, weight) for state, weight in zip(results, weights, strict=True) if weight > 0]
            model = weighted_mean([state for state, _ in counted], [weight for _, weight in counted])
            rounds.append(self._played([sorted(self.clients)], dict.fromkeys(self.clients, model)))
        return rounds

    # --- a model per cluster

    def play_ifca(self, models: int) -> list[Played]:
        clusters = self._clusters(models)
        rounds = []
        for number in range(1, self.rounds + 1):
            losses = [[self._loss(cluster, client) for cluster in clusters] for client in self.clients]
            chosen = [row.index(min(row)) for row in losses]
            groups = []
            for cluster in sorted(set(chosen)):
                group = [c for c, choice in zip(self.clients, chosen, strict=True) if choice == cluster]
                results = [self.train(clusters[cluster], client, number) for client in group]
                clusters[cluster] = weighted_mean(results, self._sizes(group))
                groups.append(group)
            own = {client: clusters[choice] for client, choice in zip(self.clients, chosen, strict=True)}
            rounds.append(self._played(groups, own))
        return rounds

    def play_flsc(self, models: int, soft: int) -> list[Played]:
        clusters = self._clusters(models)
        draws = stream(self.seed, "soft-clusters")
        rounds = []
        for number in range(1, self.rounds + 1):
            own: dict[int, State] = {}
            counted: list[list[tuple[State, int]]] = [[] for _ in clusters]
            for client in self.clients:
                losses = [self._loss(cluster, client) for cluster in clusters]
                order = sorted(range(models), key=lambda cluster: (losses[cluster], cluster))
                chosen = sorted(draws.choice(models, soft, replace=False) if number == 1 else order[:soft])
                start = weighted_mean([clusters[cluster] for cluster in chosen], [1] * soft)
                own[client] = self.train(start, client, number)
                for cluster in chosen:
                    counted[cluster].append((own[client], self._sizes([client])[0]))
            clusters = [
                weighted_mean([state for state, _ in found], [size for _, size in found]) if found else cluster
                for cluster, found in zip(clusters, counted, strict=True)
            ]
            rounds.append(self._played([[client] for client in self.clients], own))
        return rounds

    def _clusters(self, count: int) -> list[State]:
        """Different weights each; the first are those of schemes with one model."""
        clusters = [self.initial()]
        for cluster in range(1, count):
            torch.manual_seed(stream_seed(self.seed, "initial-weights", cluster))
            clusters.append({name: t.detach().numpy().copy() for name, t in self.task.model().state_dict().items()})
        return clusters

    # --- steps

    def train(self, state: State, client: int, number: int, epochs: int | None = None) -> State:
        this_round = replace(
            self, learning_rate=self._rate(number), decay=1.0, local_epochs=epochs or self.local_epochs
        )
        return Reference.train(this_round, state, client, number)

    def _rate(self, number: int) -> float:
        return self.learning_rate * self.decay ** (number - 1)

    def _there(self, number: int) -> list[int]:
        return [client for client in sorted(self.clients) if (self.joins or {}).get(client, 1) <= number]

    def _sizes(self, clients: Iterable[int]) -> list[int]:
        return [len(self.task.data(client).train) for client in clients]

    def _mean_of_models(self, models: Mapping[int, State], group: Iterable[int]) -> State:
        """A model that several of them share counts once, with the samples of all of them."""
        found: dict[int, tuple[State, int]] = {}
        for client in group:
            model = models[client]
            found[id(model)] = (model, found.get(id(model), (model, 0))[1] + self._sizes([client])[0])
        if len(found) == 1:
            return models[next(iter(group))]
        return weighted_mean([model for model, _ in found.values()], [size for _, size in found.values()])

    def _update(self, start: State, after: State, number: int, hidden: list[str]) -> State:
        trainable = [name for name, _ in self.task.model().named_parameters() if name not in hidden]
        return {n: (start[n].astype(np.float64) - after[n].astype(np.float64)) / self._rate(number) for n in trainable}

    def _gram(self, updates: list[State], names: list[str] | None) -> np.ndarray:
        vectors = np.stack([np.concatenate([u[name].ravel() for name in names or u]) for u in updates])
        return vectors @ vectors.T

    def _grouped(
        self, grouping: str, number: int, clients: list[int], evidence: Arrays, new: Iterable[int] = ()
    ) -> Partition:
        request = GroupingRequest(
            round=number,
            groups=1,
            seed=self.seed,
            clients=tuple(clients),
            sizes=np.array(self._sizes(clients)),
            matrices=evidence,
            options=self.options,
            newcomers=tuple(new),
        )
        groups = GROUPINGS[grouping](request).groups
        for slightly in (0.98, 1.02) if "alpha" in self.options else ():
            # Inner products may be rounded otherwise elsewhere: no comparison may hang by that.
            options = {**self.options, "alpha": str(slightly * float(self.options["alpha"]))}
            assert GROUPINGS[grouping](replace(request, options=options)).groups == groups, "choose another alpha"
        return [list(group) for group in groups]

    def _weighed(self, weighing: str, **columns: list[float]) -> list[float]:
        evidence = {name: np.array(column) for name, column in columns.items()}
        return WEIGHINGS[weighing](np.array(self._sizes(self.clients)), evidence, {}).tolist()

    def _judged(self, state: State, client: int, part: str) -> tuple[int, float, int]:
        model = self.module(state).eval()
        data = getattr(self.task.data(client), part)
        right, loss_sum = 0, 0.0
        with torch.no_grad():
            for begin in range(0, len(data), EVALUATED_TOGETHER):
                y = torch.from_numpy(data.y[begin : begin + EVALUATED_TOGETHER])
                outputs = model(torch.from_numpy(data.x[begin : begin + EVALUATED_TOGETHER]))
                counted = self.task.correct(outputs, y)
                assert isinstance(counted, int)
                right += counted
                loss_sum += self.task.loss(outputs, y).item() * len(y)
        return right, loss_sum, len(data)

    def module(self, state: State) -> torch.nn.Module:
        model = self.task.model()
        model.load_state_dict({name: as_torch(array.copy()) for name, array in state.items()})
        return model

    def _right(self, state: State, client: int, part: str) -> float:
        right, _, samples = self._judged(state, client, part)
        return right / samples

    def _loss(self, state: State, client: int) -> float:
        _, loss_sum, samples = self._judged(state, client, "train")
        return loss_sum / samples

    def _played(self, groups: Partition, models: dict[int, State], heads: Mapping[int, State] | None = None) -> Played:
        own = heads or {}
        accuracy = {
            client: self._right({**state, **own.get(client, {})}, client, "test") for client, state in models.items()
        }
        return Played([list(group) for group in groups], dict(models), accuracy)


def assert_equals(run: Finished, rounds: list[Played]) -> None:
    """All clients' models at the end, and who trained with whom and how well each was served in every round."""
    assert [row["partition"] for row in run.rows] == [played.partition for played in rounds]
    accuracies = [{str(client): value for client, value in played.accuracy.items()} for played in rounds]
    assert [row["accuracy_per_client"] for row in run.rows] == accuracies
    assert_final_models(run, rounds[-1].models)


def assert_final_models(run: Finished, models: Mapping[int, State]) -> None:
    named: list[int] = []
    for path in run.directory.models.glob("final*.safetensors"):
        found, origin = load(path)
        clients = origin.clients or tuple(models)
        for client in clients:
            assert_same_bits(found, models[client])
        named += clients
    assert sorted(named) == sorted(models)


def _column(values: Iterable[float]) -> np.ndarray:
    return np.array([[value] for value in values])


def _squared_distance(some: State, other: State) -> float:
    return sum(float(((some[name] - other[name]).astype(np.float64) ** 2).sum()) for name in some)


def _last_layer(model: torch.nn.Module) -> list[str]:
    dense = [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)]
    return [f"{dense[-1]}.weight", f"{dense[-1]}.bias"]


def _split(state: State, head: list[str]) -> tuple[State, State]:
    return {n: a for n, a in state.items() if n not in head}, {n: a for n, a in state.items() if n in head}


def _most_varied_layer(updates: list[State]) -> list[str]:
    """Of the dense and convolutional layers the one with the largest sum of variances over that of squared means."""
    scores: dict[tuple[str, ...], float] = {}
    for name in updates[0]:
        layer, _, kind = name.rpartition(".")
        if kind == "weight" and updates[0][name].ndim > 1:
            names = [part for part in (f"{layer}.weight", f"{layer}.bias") if part in updates[0]]
            rows = np.stack([np.concatenate([update[part].ravel() for part in names]) for update in updates])
            scores[tuple(names)] = rows.var(axis=0).sum() / ((rows.mean(axis=0) ** 2).sum() + 1e-12)
    best, _ = max(scores.items(), key=lambda scored: scored[1])
    return list(best)
