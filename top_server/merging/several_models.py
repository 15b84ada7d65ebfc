"""Several models: one for each group of clients, or one for each cluster that clients choose."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedgsp.means.averages import Mean
from fedgsp.messages import ModelRef, Results
from fedgsp.seeds import stream
from fedgsp.settings.fields import setting
from fedgsp.tensors.weights import Weights
from top_server.evidence import Evidence
from top_server.grouping.cheapest_model import can_choose, choices, soft_choices
from top_server.merging.base import GroupModel, Merging, Starts
from top_server.models import INITIAL, Changes, Held, Holdings, Made, client_slot, cluster_slot
from top_server.remembered import remembered


@dataclass(eq=False)
class ModelPerGroup(Merging):
    """No merge across groups: every client has the model of the group that it last trained in (HCCT, section 3.3).

    A group starts from the mean of its members' models, weighted by samples; the model of one client stays with it.

    Lasting groups (see `Scheme.lasts`) start from the models of the members that trained most recently: the model of a
    member that came late, was away or was skipped would only pull the group back.
    """

    alone: ClassVar[Results | None] = Results.RETAINED

    #: Client -> the round in which its model was trained.
    _trained: dict[int, int] = remembered()

    def start(self, group: Iterable[int], holdings: Holdings) -> Starts:
        """A model that several members share counts once, with the samples of all of them."""
        there = [client for client in group if client in holdings.samples]
        if self.settings.lasts:
            latest = max((self._trained.get(client, 0) for client in there), default=0)
            there = [client for client in there if self._trained.get(client, 0) == latest]
        weights: dict[ModelRef, tuple[Held, float]] = {}
        for client in there:
            held = self.of(client, holdings.slots)
            weights[held.ref] = (held, weights.get(held.ref, (held, 0.0))[1] + holdings.samples[client])
        return tuple(weights.values())

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        """The clients that trained have the model of the group now, or their own; the others keep theirs."""
        if group.weights is None:
            self._trained.update(dict.fromkeys(group.members, round_number))
            return {client_slot(client): own.held for client, own in group.members.items()}
        self._trained.update(dict.fromkeys(group.trained, round_number))
        made = Made(self.model_id(round_number, group.number), group.weights)
        return {client_slot(client): made for client in sorted(group.trained)}

    def lose(self, clients: Iterable[int], slots: Mapping[str, Held]) -> Mapping[int, str]:
        """A client whose node lost its model is a newcomer again, unless its group has given it another since."""
        gone = [client for client in sorted(clients) if self.of(client, slots).client == client]
        for client in gone:
            self._trained.pop(client, None)
        return {client: client_slot(client) for client in gone}

    def of(self, client: int, slots: Mapping[str, Held]) -> Held:
        """The client's own model or that of its group; the initial model if the client has not trained yet."""
        return slots.get(client_slot(client)) or slots[INITIAL]

    def untrained(self, client: int, slots: Mapping[str, Held]) -> str:
        """A client that joins late may have been given a model that others trained."""
        if self.of(client, slots).ref.id != self.initial_id(INITIAL):
            return ""
        return "it never trained, or what it had trained was lost"

    def welcome(self, clients: Iterable[int]) -> tuple[str, ...]:
        """The newcomers' own slots."""
        return tuple(map(client_slot, clients))

    def clients(self, holdings: Holdings) -> Iterable[int]:
        """The clients that trained, and those that are present."""
        trained = {int(slot.removeprefix("client ")) for slot in holdings.slots if slot.startswith("client ")}
        return sorted(trained.union(holdings.samples))


@dataclass(eq=False)
class Clusters(Merging):
    """The members of a group chose the same cluster: the group starts from its model, and its mean replaces it (IFCA).

    The model of a cluster is kept also in rounds in which no client chose it.
    """

    #: Client -> the cluster that it chose last.
    _chosen: dict[int, int] = remembered()

    def begin(self, round_number: int, evidence: Evidence, weights: Mapping[str, Weights]) -> Changes:
        """Notes the cluster that each client chose; a client without a finite cost chose none in this round."""
        costs = evidence.matrices["costs"]
        chosen = zip(evidence.clients, choices(costs).tolist(), can_choose(costs), strict=True)
        self._chosen.update((client, cluster) for client, cluster, chose in chosen if chose)
        return {}

    def start(self, group: Iterable[int], holdings: Holdings) -> Starts:
        """The model of the cluster that the members chose."""
        return ((self.of(next(iter(group)), holdings.slots), 1.0),)

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        """The model of the group becomes that of the cluster."""
        assert group.weights is not None
        slot = cluster_slot(self._chosen[group.clients[0]])
        return {slot: Made(self.model_id(round_number, group.number), group.weights)}

    def of(self, client: int, slots: Mapping[str, Held]) -> Held:
        """The model of the cluster that the client chose last."""
        return slots[cluster_slot(self._chosen.get(client, 0))]

    def untrained(self, client: int, slots: Mapping[str, Held]) -> str:
        """The client chose no cluster, or all members of its cluster have failed so far."""
        if client not in self._chosen:
            return "it chose no cluster"
        slot = cluster_slot(self._chosen[client])
        return f"nobody trained {slot}, which it chose" if slots[slot].ref.id == self.initial_id(slot) else ""


@dataclass(eq=False)
class Centres(Clusters):
    """Like `Clusters`, but a group starts from its centre: the plain mean of the models that its members trained last.

    A member that has no model of its own is left out of the mean. If no member has one, the group starts from the
    model of the cluster.
    """

    #: Cluster -> the ids of the members' models whose mean is the model of the cluster.
    _behind: dict[int, list[str]] = remembered()

    def start(self, group: Iterable[int], holdings: Holdings) -> Starts:
        """The members' own models, which stay on their nodes; or the cluster's model if it is the mean of these."""
        members = tuple(group)
        local = holdings.local_models
        own = [local[client] for client in members if client in local and client in holdings.samples]
        if not own or [held.ref.id for held in own] == self._behind.get(self._chosen[members[0]]):
            return super().start(members, holdings)
        return tuple((held, 1.0) for held in own)

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        """The mean of what the members trained becomes the model of the cluster."""
        self._behind[self._chosen[group.clients[0]]] = [one.held.ref.id for one in group.members.values()]
        return super().fold(round_number, group)


@dataclass(frozen=True, slots=True)
class SoftOptions:
    """Options of merge `soft-clusters`."""

    soft: int = setting(2, "number of clusters that a client counts in", least=1)


@dataclass(eq=False)
class SoftClusters(Merging):
    """Clusters overlap: a client starts from the mean of a few clusters' models, and its result counts in each (FLSC).

    A client is evaluated on the model that it trained itself; its clusters' models are not sent back to it.
    """

    alone: ClassVar[Results | None] = Results.COLLECTED

    _chosen: dict[int, tuple[int, ...]] = field(init=False, default_factory=dict)
    #: Cluster -> the mean of the models folded so far, for the clusters in which a model was folded.
    _means: dict[int, Mean] = field(init=False, default_factory=dict)

    def reads(self, evidence: Evidence) -> Iterable[str]:
        """The models of all clusters."""
        return map(cluster_slot, range(evidence.matrices["costs"].shape[1]))

    def begin(self, round_number: int, evidence: Evidence, weights: Mapping[str, Weights]) -> Changes:
        """Chooses each client's clusters, those of smallest loss, or at random in round 1; makes the starts.

        After round 1 a client without a finite loss has no clusters.
        """
        losses, count = evidence.matrices["costs"], self.settings.options.soft
        chosen, chose = soft_choices(losses, count), can_choose(losses)
        if round_number == 1:
            rng = stream(self.settings.seed, "soft-clusters")
            chosen = np.sort([rng.choice(losses.shape[1], count, replace=False) for _ in evidence.clients], axis=1)
            chose[:] = True
        rows = zip(evidence.clients, chosen.tolist(), chose, strict=True)
        self._chosen = {client: tuple(row) for client, row, known in rows if known}
        self._means = {}
        starts: dict[str, Made] = {}
        for clusters in sorted(set(self._chosen.values())):
            mean = Mean(weighted=False)
            for cluster in clusters:
                mean.fold(weights[cluster_slot(cluster)])
            slot = _start_slot(clusters)
            starts[slot] = Made(self.model_id(round_number, slot), mean.result())
        return starts

    def start(self, group: Iterable[int], holdings: Holdings) -> Starts:
        """The plain mean of the client's clusters; nothing for a client without clusters, which does not train."""
        (client,) = group
        if client not in self._chosen:
            return ()
        return ((holdings.slots[_start_slot(self._chosen[client])], 1.0),)

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        """The model of every client counts in all of its clusters, by its samples, in the order of the clients."""
        changes: dict[str, Made] = {}
        for client, own in group.members.items():
            assert own.weights is not None
            for cluster in self._chosen[client]:
                self._means.setdefault(cluster, Mean(weighted=True)).fold(own.weights, own.samples)
            changes[client_slot(client)] = Made(own.held.ref.id, own.weights)
        return changes

    def finish(self, round_number: int) -> Changes:
        """A cluster that no client chose keeps its model."""
        merged = {
            cluster_slot(cluster): Made(self.model_id(round_number, f"c{cluster}"), mean.result())
            for cluster, mean in sorted(self._means.items())
        }
        self._means = {}
        return {**merged, **dict.fromkeys(map(_start_slot, self._chosen.values()))}

    def of(self, client: int, slots: Mapping[str, Held]) -> Held:
        """The model that the client trained last; before that, the model of the first cluster."""
        return slots.get(client_slot(client)) or slots[cluster_slot(0)]

    def untrained(self, client: int, slots: Mapping[str, Held]) -> str:
        """Before it trained, a client would use the first cluster's model, which it did not choose."""
        return "" if client_slot(client) in slots else "it never trained"


def _start_slot(clusters: tuple[int, ...]) -> str:
    return f"start {'+'.join(map(str, clusters))}"
