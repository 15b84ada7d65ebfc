"""The models of a run: a slot for each use, such as "global" or "client 3", and the holder of each slot's model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedgsp.messages import ModelRef
from fedgsp.tensors.weights import Weights

if TYPE_CHECKING:
    from fedgsp.transfers.model_store import ModelStore

#: The slot of the initial model, for clients that join later; and the slot of the model that all clients share.
INITIAL = "initial"
GLOBAL = "global"


def client_slot(client: int) -> str:
    """The slot of a client's model."""
    return f"client {client}"


def cluster_slot(cluster: int) -> str:
    """The slot of a cluster's model."""
    return f"cluster {cluster}"


@dataclass(frozen=True, slots=True)
class Held:
    """A model and its holder: the node of `client`, or this process if `client` is None."""

    ref: ModelRef
    client: int | None = None

    def to_json(self) -> list[Any]:
        """The JSON of a saved state."""
        return [self.ref.id, self.ref.size, self.ref.digest.hex(), self.client]

    @classmethod
    def from_json(cls, saved: list[Any]) -> Held:
        """The inverse; raises ValueError or TypeError."""
        model_id, size, digest, client = saved
        return cls(ModelRef(model_id, size, bytes.fromhex(digest)), client)


@dataclass(slots=True, eq=False)
class Made:
    """A model that was made in this process, and its id."""

    model_id: str
    weights: Weights


#: The new content of slots: a model made here, a model that exists already, or None for a slot to be forgotten.
#: Several slots may name the same `Made`.
Changes = Mapping[str, Made | Held | None]


@dataclass(frozen=True, slots=True)
class Holdings:
    """The models of a run with their holders, and the present clients, at one moment."""

    slots: Mapping[str, Held]
    #: Training samples of each present client, in ascending order of the clients.
    samples: Mapping[int, int]
    #: The model that each client trained last, for schemes in which nodes retain it.
    local_models: Mapping[int, Held]
    #: The training samples that each client told last, also of clients whose nodes are away.
    told: Mapping[int, int] = field(default_factory=dict)

    def with_everybody(self, clients: Iterable[int]) -> Holdings:
        """These holdings as if these clients were present; without a client that never told its samples."""
        told = {**self.told, **self.samples}
        return replace(self, samples={client: told[client] for client in sorted(clients) if client in told})


class Models:
    """Slots such as "global" or "client 3".

    Invariant: the store holds exactly the models that slots name and that this process holds.
    """

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._slots: dict[str, Held] = {}

    def __contains__(self, slot: str) -> bool:
        return slot in self._slots

    def __getitem__(self, slot: str) -> Held:
        return self._slots[slot]

    @property
    def slots(self) -> dict[str, Held]:
        """The model of every slot, at this moment."""
        return dict(self._slots)

    def weights(self, held: Held) -> Weights:
        """The weights of a model that this process holds."""
        return self._store.held(held.ref.id)

    def apply(self, changes: Changes) -> None:
        """Changes slots. A model that no slot names any more is forgotten."""
        before = {held.ref.id for held in self._slots.values()}
        for slot, change in changes.items():
            if isinstance(change, Made):
                self._store.put(change.model_id, change.weights)
                change = Held(change.weights.ref(change.model_id))
            if change is None:
                self._slots.pop(slot, None)
            else:
                self._slots[slot] = change
        self._store.release(before - {held.ref.id for held in self._slots.values()})

    def put(self, slots: Iterable[str], model_id: str, weights: Weights) -> Held:
        """Keeps a model in this process and lets these slots name it."""
        self.apply(dict.fromkeys(slots, Made(model_id, weights)))
        return Held(weights.ref(model_id))
