"""The models of a run by what they are for, and who holds each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedgsp.messages import ModelRef
from fedgsp.model_store import ModelStore
from fedgsp.weights import Weights

#: Slot of the model of round 0, for clients that come later; and of the one model of schemes with one.
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
    """A model and who holds it: the node of `client`, or this process if that is None."""

    ref: ModelRef
    client: int | None = None

    def to_json(self) -> list[Any]:
        """As it stands in a saved state."""
        return [self.ref.id, self.ref.size, self.ref.digest.hex(), self.client]

    @classmethod
    def from_json(cls, saved: list[Any]) -> Held:
        """The inverse; raises ValueError or TypeError."""
        model_id, size, digest, client = saved
        return cls(ModelRef(model_id, size, bytes.fromhex(digest)), client)


class Models:
    """Slots such as "global" or "client 3". Invariant: the store holds what a slot of this process names, no more."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._slots: dict[str, Held] = {}

    def __contains__(self, slot: str) -> bool:
        return slot in self._slots

    def __getitem__(self, slot: str) -> Held:
        return self._slots[slot]

    @property
    def slots(self) -> dict[str, Held]:
        """Who holds what, by slot."""
        return dict(self._slots)

    def held(self, held: Held) -> Weights:
        """A model that this process holds."""
        return self._store.held(held.ref.id)

    def clients(self) -> set[int]:
        """Clients with a slot."""
        return {int(slot.removeprefix("client ")) for slot in self._slots if slot.startswith("client ")}

    def put(self, slots: Iterable[str], model_id: str, weights: Weights) -> Held:
        """Keeps a model here, for several slots at once."""
        self._store.put(model_id, weights)
        held = Held(weights.ref(model_id))
        self.point(dict.fromkeys(slots, held))
        return held

    def point(self, slots: dict[str, Held]) -> None:
        """Lets slots name these models; one that no slot names any more is forgotten."""
        before = {self._slots[slot].ref.id for slot in slots if slot in self._slots}
        self._slots.update(slots)
        self._store.release(before - {held.ref.id for held in self._slots.values()})

    def clear(self) -> None:
        """Forgets all."""
        self._store.release(held.ref.id for held in self._slots.values())
        self._slots.clear()

    def drop(self, slot: str) -> None:
        """Forgets a slot."""
        held = self._slots.pop(slot, None)
        if held is not None and held.ref.id not in {other.ref.id for other in self._slots.values()}:
            self._store.release([held.ref.id])

    async def weights(self, held: Held) -> Weights:
        """A model that this process holds, or is about to."""
        return await self._store.get(held.ref.id)
