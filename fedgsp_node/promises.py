"""Models that a node has promised to make. If one will not come, the orders that wait for it get the reason."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from fedgsp.messages import Failure, FailureCode, Trained
from fedgsp.model_store import ModelStore
from fedgsp.weights import Weights, WeightsError
from fedgsp_node.order_error import OrderError


@contextlib.contextmanager
def promised(store: ModelStore, model_id: str) -> Iterator[None]:
    """Passes the reason to the orders that wait for a model if it will not come. An empty id promises nothing."""
    try:
        yield
    except (OrderError, WeightsError, asyncio.CancelledError) as error:
        called_off = Failure(FailureCode.CANCELLED, "called off")
        if model_id:
            store.fail(model_id, called_off if isinstance(error, asyncio.CancelledError) else error.failure)
        raise


async def publish(store: ModelStore, model_id: str, weights: Weights) -> Trained:
    """Puts a model into the store, from which other processes fetch it; returns a report with its reference."""
    # Stored before the digest is computed: the next client of this node can start at once.
    store.put(model_id, weights)
    await asyncio.to_thread(lambda: weights.digest)
    return Trained(weights.ref(model_id))
