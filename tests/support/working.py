"""One node's worker whose weights all come from its own store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedgsp.connections.channels import Channels
from fedgsp.errors import RunError
from fedgsp.messages import (
    Failure,
    Order,
    OrderKey,
    Source,
    SourceKind,
    Start,
    Train,
    Trained,
    TrainingSettings,
    Work,
)
from fedgsp.tensors.weights import Weights, WeightsError
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.clients import Clients
from fedgsp_node.fetching import Fetcher
from fedgsp_node.kept.personal_state import PersonalState
from fedgsp_node.order_error import OrderError
from fedgsp_node.slot import Slot
from fedgsp_node.worker import Worker
from tests.support.blobs_task import Blobs

SETTINGS = TrainingSettings("sgd", 1, 7, 0.05, seed=3)
HERE = (Source(SourceKind.LOCAL, "n0"),)
OWN = (Source(SourceKind.OWN, "n0"),)
ROUND = 4


@dataclass
class Node:
    """A worker whose weights all come from its own store."""

    clients: Clients
    store: ModelStore
    slot: Slot
    worker: Worker
    uploads: dict[str, Weights] = field(default_factory=dict)

    def do(self, work: Work | None, client: int = 0, round_number: int = ROUND) -> Coroutine[Any, Any, Any]:
        return self.worker.carry_out(Order(OrderKey(round_number, "train", 0, 0), client, work), self._upload)

    async def _upload(self, model_id: str, weights: Weights, _ticket: bytes, _: str) -> None:
        self.uploads[model_id] = weights


@asynccontextmanager
async def node(task: Blobs | None = None, state_dir: Path | None = None) -> AsyncIterator[Node]:
    clients, store, slot = Clients(task or Blobs(), None, PersonalState(state_dir)), ModelStore(), Slot()
    store.put("start", clients.initial_weights(0))
    try:
        async with Channels() as channels:
            worker = Worker(clients, store, Fetcher(store, channels, clients.tensors, "127.0.0.1"), slot)
            worker.open("run")
            yield Node(clients, store, slot, worker)
    finally:
        slot.close()


def training(start: str, produces: str) -> Train:
    return Train(Start(start, HERE), produces, SETTINGS)


async def why_not(doing: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> Failure:
    with pytest.raises((OrderError, WeightsError)) as error:
        await doing
    return error.value.failure  # type: ignore[attr-defined]


def no_receipt(_: Trained) -> None:
    """In place of the receipt of a training: the disk is full."""
    raise RunError("receipts.jsonl cannot be written", "make room")
