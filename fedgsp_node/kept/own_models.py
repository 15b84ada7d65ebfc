"""Models that clients trained alone: they stay on the node until a manager asks for them."""

from collections.abc import Callable, Container, Iterable

from fedgsp.errors import DataError, UserError
from fedgsp.messages import FailureCode, TensorSpec
from fedgsp.tensors.weights import Weights
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.kept.personal_state import HEAD, MODEL, NEXT_MODEL, PERSONAL_MODEL, PREVIOUS, Arrays, PersonalState
from fedgsp_node.order_error import failing


def check_kept(arrays: Arrays, specs: Iterable[TensorSpec], client: int) -> None:
    """Raises DataError unless the arrays have the names, dtypes and shapes of `specs`."""
    wanted = {spec.name: (spec.dtype, spec.shape) for spec in specs}
    if {name: (str(array.dtype), array.shape) for name, array in arrays.items()} != wanted:
        raise DataError(
            f"what --state-dir keeps for client {client} does not fit the model of the task",
            "give the directory of this task, or another one",
        )


def _round_of(model_id: str) -> list[str]:
    """The round in which a model was made: ids begin with the run and the round."""
    return model_id.split("/")[1:2]


class OwnModels:
    """The models of clients that train alone.

    Invariant: at most two models of each client are held. One is its last result. The other is the model that this
    training started from; if the client did not own that model, it is the client's result of the round before.

    The older model is kept until the next round, because the manager may have missed the report on the result and may
    order the training again.
    """

    def __init__(self, store: ModelStore, personal: PersonalState, tensors: tuple[TensorSpec, ...]) -> None:
        self._store = store
        self._personal = personal
        self._tensors = tensors
        self._ids: dict[int, list[str]] = {}
        self._saved: set[str] = set()

    def save(self, client: int, model_id: str, weights: Weights) -> None:
        """Writes the result of a training to disk, where `settle` finds it; raises OrderError if that fails."""
        with failing(FailureCode.UNSPECIFIED, UserError, OSError):
            self._personal.finish(client)  # a result before it may still be there, and count
            self._personal.save(client, NEXT_MODEL, weights.arrays, model_id)
        self._saved.add(model_id)

    def give_up(self, model_id: str) -> None:
        """Stops holding a model that was saved, because there is no receipt of its training."""
        self._saved.discard(model_id)

    def settle(self, client: int, start_id: str, model_id: str) -> None:
        """Keeps on disk what was saved, beside the older model: there is a receipt of it. Raises RunError."""
        moves = [(NEXT_MODEL, MODEL)]
        if self._ids.get(client, [])[-1:] == self._older(client, start_id, model_id) != []:
            moves.insert(0, (MODEL, PREVIOUS))
        self._personal.rename(client, moves)

    def hold(self, client: int, start_id: str, model_id: str) -> None:
        """Keeps the result and the older model in the store, and releases the client's other models there."""
        older = self._older(client, start_id, model_id)
        self._store.release([other for other in self._ids.get(client, []) if other not in (*older, model_id)])
        self._ids[client] = [*older, model_id]
        self._saved.discard(model_id)

    def _older(self, client: int, start_id: str, model_id: str) -> list[str]:
        held = self._ids.get(client, [])
        if start_id in held:
            return [start_id]
        return [other for other in held if _round_of(other) != _round_of(model_id)][-1:]

    def __contains__(self, model_id: str) -> bool:
        return model_id in self._saved or any(model_id in held for held in self._ids.values())

    def forget(self, model_ids: Iterable[str]) -> None:
        """Forgets both models of every client that owns one of these."""
        gone = set(model_ids)
        for client in [client for client, held in self._ids.items() if gone.intersection(held)]:
            self._store.release(self._ids.pop(client))

    def reopen(self, clients: Iterable[int], trainings: Callable[[], Container[str]]) -> None:
        """Forgets the models of the last run, and reads the models of this run from disk into the store.

        What the process before this one had only saved counts if `trainings` has its id. Raises DataError for a file
        that is damaged or does not fit the task, and RunError if the disk fails.
        """
        self._ids.clear()
        self._saved.clear()
        for client in clients:
            for purpose, specs in (
                (HEAD, [spec for spec in self._tensors if spec.head]),
                (PERSONAL_MODEL, self._tensors),
            ):
                kept = self._personal.get(client, purpose)
                if kept is not None:
                    check_kept(kept[1], specs, client)
            for purpose in (PREVIOUS, MODEL):
                if (model_id := self._read(client, purpose)) is not None:
                    self._ids.setdefault(client, []).append(model_id)
            saved = self._personal.label(client, NEXT_MODEL)
            if saved is not None and saved in trainings():
                self.settle(client, "", saved)
                self._read(client, MODEL)
                self.hold(client, "", saved)

    def _read(self, client: int, purpose: str) -> str | None:
        """Puts a model from disk into the store; returns its id."""
        found = self._personal.load(client, purpose)
        if found is None:
            return None
        model_id, arrays = found
        specs = tuple(spec for spec in self._tensors if spec.name in arrays)
        check_kept(arrays, specs, client)
        self._store.put(model_id, Weights.of(arrays, specs))
        return model_id
