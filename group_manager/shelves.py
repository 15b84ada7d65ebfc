"""The models of the groups that a manager runs at the same time, in its one store.

Groups have models in common, such as the global model that they all start from. It stays until the last group that has
it lets it go. Models that are on no shelf, such as the results that nodes bring, go when any group releases them: only
one group knows their names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from fedgsp.messages import Failure
from fedgsp.shared_work import SharedWork
from fedgsp.tensors.weights import Weights
from fedgsp.transfers.model_store import ModelStore
from group_manager.room_ahead import RoomAhead


class Shelves:
    """The shelves of all groups of a manager."""

    def __init__(self, store: ModelStore, room_ahead: RoomAhead | None = None) -> None:
        """`room_ahead`: for models that come before their turn."""
        self.store = store
        #: Model -> number of shelves that it is on.
        self.shared: Counter[str] = Counter()
        #: Models on their way here from the top server.
        self.coming: SharedWork[Weights] = SharedWork()
        self.room_ahead = room_ahead or RoomAhead()

    def add(self) -> Shelf:
        """A shelf for another group."""
        return Shelf(self)


class Shelf:
    """What one group has in the store. Where nothing else is said, a method is that of `ModelStore`."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self._store = shelves.store
        self._here: set[str] = set()

    def __contains__(self, model_id: str) -> bool:
        return model_id in self._store

    @property
    def room_ahead(self) -> RoomAhead:
        """For models that come before their turn; all groups of this manager share it."""
        return self._shelves.room_ahead

    def put(self, model_id: str, weights: Weights) -> None:
        """Keeps a model for this group; raises WeightsError if another model has this id."""
        self.expect(model_id)
        self._store.put(model_id, weights)

    def join(self, model_id: str) -> bool:
        """Whether another group has this model here; then this group has it, too."""
        found = model_id in self._store and self._shelves.shared[model_id] > (model_id in self._here)
        if found:
            self.expect(model_id)
        return found

    async def fetched(self, model_id: str, digest: bytes, fetch: Callable[[], Awaitable[Weights]]) -> Weights:
        """What `fetch` brings, once for all groups that want the model at this time. The store does not get it."""
        return (await self._shelves.coming.share((model_id, digest), fetch)).result

    def expect(self, model_id: str) -> None:
        """A model is to come for this group, perhaps from a node: from now on no other group lets it go."""
        if model_id not in self._here:
            self._here.add(model_id)
            self._shelves.shared[model_id] += 1

    def held(self, model_id: str) -> Weights:
        """See `ModelStore`."""
        return self._store.held(model_id)

    def fail(self, model_id: str, failure: Failure) -> None:
        """See `ModelStore`."""
        self._store.fail(model_id, failure)

    async def get(self, model_id: str) -> Weights:
        """See `ModelStore`."""
        return await self._store.get(model_id)

    async def fewer_than(self, most: int, of: Iterable[str]) -> None:
        """See `ModelStore`."""
        await self._store.fewer_than(most, of)

    def release(self, model_ids: Iterable[str]) -> None:
        """Lets models go: the store forgets those that no other group has."""
        for model_id in model_ids:
            self._disown(model_id)
            if not self._shelves.shared[model_id]:
                self._store.release([model_id])

    def close(self) -> None:
        """The group has ended. What is left of it in the store waits for the top server, which releases it there."""
        for model_id in [*self._here]:
            self._disown(model_id)

    def _disown(self, model_id: str) -> None:
        if model_id in self._here:
            self._here.remove(model_id)
            self._shelves.shared[model_id] -= 1
            if not self._shelves.shared[model_id]:
                del self._shelves.shared[model_id]
