"""Models that clients trained alone and keep: nothing of them travels until somebody asks."""

from __future__ import annotations

from collections.abc import Iterable

from fedgsp.errors import DataError, UserError
from fedgsp.messages import Failure, FailureCode, TensorSpec
from fedgsp.model_store import ModelStore
from fedgsp.weights import Weights
from fedgsp_node.clients import OrderError
from fedgsp_node.personal import HEAD, MODEL, PERSONAL_MODEL, PREVIOUS, Arrays, PersonalState


def check_kept(arrays: Arrays, specs: Iterable[TensorSpec], client: int) -> None:
    """Raises DataError unless these are the tensors that the model has."""
    wanted = {spec.name: (spec.dtype, spec.shape) for spec in specs}
    if {name: (str(array.dtype), array.shape) for name, array in arrays.items()} != wanted:
        raise DataError(
            f"what --state-dir keeps for client {client} does not fit the model of the task",
            "give the directory of this task, or another one",
        )


class OwnModels:
    """Invariant: of each client at most two are held, the one that its last training started from and its result.

    The older one goes only when the next training starts from the newer one: whoever ordered the training may never
    have heard of its result.
    """

    def __init__(self, store: ModelStore, personal: PersonalState, tensors: tuple[TensorSpec, ...]) -> None:
        self._store = store
        self._personal = personal
        self._tensors = tensors
        self._ids: dict[int, list[str]] = {}

    def save(self, client: int, start_id: str, model_id: str, weights: Weights) -> None:
        """Puts the result of a training on disk, beside the model that it started from; raises OrderError."""
        if not self._personal.lasting:
            return
        try:
            if self._ids.get(client, [])[-1:] == [start_id]:
                self._personal.rename(client, MODEL, PREVIOUS)
            self._personal.save(client, MODEL, weights.arrays, model_id)
        except (UserError, OSError) as error:
            raise OrderError(Failure(FailureCode.UNSPECIFIED, str(error))) from error

    def hold(self, client: int, start_id: str, model_id: str) -> None:
        """The result, which the store has or is about to get, stays; so does the model that it started from."""
        held = self._ids.get(client, [])
        self._store.release([other for other in held if other != start_id])
        self._ids[client] = [*(other for other in held if other == start_id), model_id]

    def __contains__(self, model_id: str) -> bool:
        return any(model_id in held for held in self._ids.values())

    def forget(self, model_ids: Iterable[str]) -> None:
        """A client whose own model is wanted no more has none, nor the one before."""
        gone = set(model_ids)
        for client in [client for client, held in self._ids.items() if gone.intersection(held)]:
            self._store.release(self._ids.pop(client))

    def reopen(self, clients: Iterable[int]) -> None:
        """Forgets the last run's; puts those of this run that a restart left on disk into the store."""
        self._ids.clear()
        for client in clients:
            head = self._personal.get(client, HEAD)
            if head is not None:
                check_kept(head[1], (spec for spec in self._tensors if spec.head), client)
            personal = self._personal.get(client, PERSONAL_MODEL)
            if personal is not None:
                check_kept(personal[1], self._tensors, client)
            for purpose in (PREVIOUS, MODEL):
                found = self._personal.load(client, purpose)
                if found is not None:
                    model_id, arrays = found
                    specs = tuple(spec for spec in self._tensors if spec.name in arrays)
                    check_kept(arrays, specs, client)
                    self._store.put(model_id, Weights.of(arrays, specs))
                    self._ids.setdefault(client, []).append(model_id)
