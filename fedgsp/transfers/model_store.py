"""The models that a process holds, by id. A request for a model that is not there yet waits for it."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

from fedgsp.messages import Failure, FailureCode
from fedgsp.tensors.weights import Weights, WeightsError, require

#: Number of failed ids that are remembered for late requests.
REMEMBERED_FAILURES = 1024


class ModelStore:
    """Models by id. Invariant: an id is held, failed or waited for, and never two of these."""

    def __init__(self) -> None:
        #: Bytes of all held models.
        self.bytes = 0
        self._held: dict[str, Weights] = {}
        self._failed: OrderedDict[str, Failure] = OrderedDict()
        self._waiting: dict[str, set[asyncio.Future[Weights]]] = {}
        self._released = asyncio.Event()  # set, and replaced, at every release

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, model_id: str) -> bool:
        return model_id in self._held

    def ids(self, prefix: str) -> list[str]:
        """The ids of held models that begin with `prefix`."""
        return [model_id for model_id in self._held if model_id.startswith(prefix)]

    def held(self, model_id: str) -> Weights:
        """The model of this id; KeyError if it is not held."""
        return self._held[model_id]

    def put(self, model_id: str, weights: Weights) -> None:
        """Keep a model and pass it to all waiting callers; raises WeightsError if another model has this id.

        The same model may come again, because an order that is given twice is carried out twice.
        """
        if model_id in self._held:
            require(
                self._held[model_id].digest == weights.digest,
                FailureCode.BAD_ORDER,
                f"another model has the name {model_id!r} here",
            )
            return
        self._failed.pop(model_id, None)
        self._held[model_id] = weights
        self.bytes += weights.buffer.nbytes
        for waiter in self._waiting.pop(model_id, ()):
            if not waiter.done():
                waiter.set_result(weights)

    def fail(self, model_id: str, failure: Failure) -> None:
        """Record that a promised model will not come; waiting callers get WeightsError."""
        if model_id in self._held:
            return
        self._failed[model_id] = failure
        while len(self._failed) > REMEMBERED_FAILURES:
            self._failed.popitem(last=False)
        for waiter in self._waiting.pop(model_id, ()):
            if not waiter.done():
                waiter.set_exception(WeightsError(failure.code, failure.detail))

    async def get(self, model_id: str) -> Weights:
        """The model; waits for it. Raises WeightsError if the model failed. The caller sets the deadline."""
        if model_id in self._held:
            return self._held[model_id]
        if model_id in self._failed:
            failure = self._failed[model_id]
            raise WeightsError(failure.code, failure.detail)
        waiter: asyncio.Future[Weights] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(model_id, set()).add(waiter)
        try:
            return await waiter
        finally:
            waiters = self._waiting.get(model_id)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._waiting[model_id]

    def release(self, model_ids: Iterable[str]) -> None:
        """Forget models. Unknown ids are ignored."""
        for model_id in model_ids:
            gone = self._held.pop(model_id, None)
            self.bytes -= gone.buffer.nbytes if gone is not None else 0
            self._failed.pop(model_id, None)
        self._tell_of_release()

    async def fewer_than(self, most: int, of: Iterable[str]) -> None:
        """Wait until fewer than `most` of these models are held. The caller sets the deadline."""
        ids = set(of)
        while sum(model_id in self._held for model_id in ids) >= most:
            await self._released.wait()

    def clear(self) -> None:
        """Forget all models."""
        self._held.clear()
        self.bytes = 0
        self._failed.clear()
        self._tell_of_release()

    def _tell_of_release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()
