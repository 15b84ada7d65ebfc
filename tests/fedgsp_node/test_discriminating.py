"""Orders for client discriminators, carried out by a worker: what is trained, kept, told and refused."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import numpy as np
import pytest
import torch

from fedgsp import ClientData, Split
from fedgsp.connections.channels import Channels
from fedgsp.messages import (
    Discriminate,
    Discriminated,
    DiscriminatorSettings,
    FailureCode,
    Order,
    OrderKey,
    SendUp,
    Source,
    SourceKind,
    Start,
)
from fedgsp.tensors.weights import Weights
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node import discriminators
from fedgsp_node.clients import Clients
from fedgsp_node.discriminators import Encoded, encoded
from fedgsp_node.fetching import Fetcher
from fedgsp_node.slot import Slot
from fedgsp_node.training.control import Control
from fedgsp_node.worker import Worker
from tests.support.blobs_task import Blobs
from tests.support.scripted import let_others_run
from tests.support.serving import serving
from tests.support.weights import said
from tests.support.working import HERE, Node, node, why_not

#: Client c of the blobs has 10 + c samples of 6 numbers, in 3 classes.
PAIRS = DiscriminatorSettings(samples=5, steps=2, batch_size=4, learning_rate=0.1, seed=3)
SHARED = dataclasses.replace(PAIRS, shared=True)
KINDS = pytest.mark.parametrize(
    ("settings", "others"), [(PAIRS, (0, 3)), (SHARED, (0, 2, 3))], ids=["pairs", "shared"]
)
CLIENT = 2


def work(
    settings: DiscriminatorSettings | None = PAIRS,
    others: tuple[int, ...] = (0, 3),
    start: Start | None = None,
    produces: str = "end",
    judge: bool = False,
) -> Discriminate:
    return Discriminate(start, produces, others, settings, judge)


async def do(n: Node, what: Discriminate, exchange: int = 0, client: int = CLIENT) -> Discriminated:
    key = OrderKey(1, "discriminate", 0, 0)
    order = Order(key, client, dataclasses.replace(what, exchange=exchange))
    result = await n.worker.carry_out(order, _no_upload)
    assert isinstance(result, Discriminated)
    return result


async def _no_upload(model_id: str, weights: Weights, ticket: bytes, receiver: str) -> None:
    raise AssertionError(f"nobody asked for {model_id}")


def seen(client: int = CLIENT, scale: float = 1.0) -> Encoded:
    return encoded(Blobs(), Clients(Blobs(), None).training_part(client), Control(), scale)


def fresh(settings: DiscriminatorSettings, others: tuple[int, ...]) -> Weights:
    return discriminators.fresh(settings.seed, *discriminators.sizes(CLIENT, others, settings.shared), 6, 3)


def some(settings: DiscriminatorSettings, others: tuple[int, ...], seed: int = 0) -> Weights:
    """Networks as they are after some exchanges."""
    weights = fresh(settings, others)
    weights.buffer.view(np.float32)[:] += np.random.default_rng(seed).normal(0, 0.2, weights.buffer.nbytes // 4)
    return weights


def stepped(weights: Weights, settings: DiscriminatorSettings, others: tuple[int, ...], exchange: int) -> Weights:
    after = weights.copy()
    discriminators.step(after, seen(scale=settings.feature_scale), CLIENT, others, settings, exchange, Control())
    return after


# --- what comes of an order


@KINDS
async def test_without_a_start_fresh_networks_are_trained_kept_and_named(
    settings: DiscriminatorSettings, others: tuple[int, ...]
) -> None:
    async with node() as n:
        result = await do(n, work(settings, others))
        kept = await n.store.get("end")
        assert np.array_equal(kept.buffer, stepped(fresh(settings, others), settings, others, 0).buffer)
        assert result == Discriminated(kept.ref("end"), (), 12 - 5, None, 0)


@KINDS
async def test_a_start_is_judged_as_it_came_and_then_trained(
    settings: DiscriminatorSettings, others: tuple[int, ...]
) -> None:
    async with node() as n:
        before = some(settings, others)
        n.store.put("begin", before.copy())
        result = await do(n, work(settings, others, Start("begin", HERE), judge=True), exchange=7)
        assert result.correct == discriminators.judge(before, seen(), CLIENT, others, settings, Control())
        assert len(result.correct) == len(others)
        assert np.array_equal((await n.store.get("end")).buffer, stepped(before, settings, others, 7).buffer)
        assert (result.source, result.bytes) == (HERE[0], 0)


async def test_the_exchange_decides_the_batches() -> None:
    async with node() as n:
        for exchange in (0, 1):
            await do(n, work(produces=f"end {exchange}"), exchange)
        assert (await n.store.get("end 0")).digest != (await n.store.get("end 1")).digest


@KINDS
async def test_judging_alone_keeps_nothing(settings: DiscriminatorSettings, others: tuple[int, ...]) -> None:
    async with node() as n:
        n.store.put("begin", some(settings, others))
        held = len(n.store)
        result = await do(n, work(settings, others, Start("begin", HERE), produces="", judge=True))
        assert result.ref is None
        assert len(result.correct) == len(others)
        assert len(n.store) == held


async def test_what_is_trained_has_the_digest_that_is_told() -> None:
    """That of what came was computed when it came."""
    async with node() as n:
        begin = some(PAIRS, (0, 3))
        old = begin.digest
        n.store.put("begin", begin)
        result = await do(n, work(start=Start("begin", HERE)))
        assert result.ref is not None
        kept = await n.store.get("end")
        assert result.ref.digest == Weights(kept.tensors, kept.buffer).digest != old


async def test_scaled_features_are_other_samples() -> None:
    async with node() as n:
        settings = dataclasses.replace(PAIRS, feature_scale=0.5)
        await do(n, work(settings, produces="scaled"))
        await do(n, work(PAIRS, produces="raw"))
        for name, how in [("scaled", settings), ("raw", PAIRS)]:
            expected = stepped(fresh(how, (0, 3)), how, (0, 3), 0)
            assert np.array_equal((await n.store.get(name)).buffer, expected.buffer)


class Counting(Blobs):
    """Counts how often samples are encoded."""

    encoded = 0

    def features(self, x: torch.Tensor) -> torch.Tensor:
        self.encoded += 1
        return super().features(x)


async def test_samples_are_encoded_once_a_client_and_run() -> None:
    task = Counting()
    async with node(task) as n:
        for exchange in range(3):
            await do(n, work(produces=f"end {exchange}"), exchange)
        assert task.encoded == 1
        await do(n, work(others=(0, 2), produces="other"), client=3)
        assert task.encoded == 2
        n.worker.open("another run")
        await do(n, work(produces="again"))
        assert task.encoded == 3


async def test_training_and_judging_are_progress() -> None:
    async with node() as n:
        n.store.put("begin", some(PAIRS, (0, 3)))
        await do(n, work(start=Start("begin", HERE), judge=True))
        assert n.worker.mark >= 1 + 1 + PAIRS.steps


# --- weights that come from a manager


@dataclasses.dataclass
class Manager:
    store: ModelStore
    source: Source


@asynccontextmanager
async def manager() -> AsyncIterator[Manager]:
    store = ModelStore()

    def register(server: grpc.aio.Server) -> None:
        ModelServicer(store).add_to(server)

    async with serving(register) as served:
        yield Manager(store, Source(SourceKind.MANAGER, "m0", served.address))


@KINDS
async def test_networks_are_fetched_though_they_are_none_of_the_models_tensors(
    settings: DiscriminatorSettings, others: tuple[int, ...]
) -> None:
    async with node() as n, manager() as m:
        before = some(settings, others)
        m.store.put("begin", before)
        result = await do(n, work(settings, others, Start("begin", (m.source,))))
        assert np.array_equal((await n.store.get("end")).buffer, stepped(before, settings, others, 0).buffer)
        assert (result.source, result.bytes) == (said(m.source, before.buffer.nbytes), before.buffer.nbytes)
        assert "begin" not in n.store


@pytest.mark.parametrize(
    "wrong",
    [fresh(PAIRS, (0,)), fresh(PAIRS, (0, 1, 3)), fresh(SHARED, (0, 2, 3)), "model"],
    ids=["too few", "too many", "shared", "a model"],
)
async def test_networks_of_other_shapes_are_refused_before_they_travel(wrong: Weights | str) -> None:
    async with node() as n, manager() as m:
        m.store.put("begin", await n.store.get("start") if isinstance(wrong, str) else wrong)
        failure = await why_not(do(n, work(start=Start("begin", (m.source,)))))
        assert failure.code is FailureCode.WRONG_SHAPES
        assert n.worker.mark == 1  # the samples were encoded, and no chunk came


async def test_clients_of_a_node_share_a_start_that_each_trains_for_itself() -> None:
    async with node() as n, manager() as m:
        before = some(SHARED, (0, 2, 3))
        m.store.put("begin", before)
        start = Start("begin", (m.source,), keep=True)
        results = await asyncio.gather(
            *(do(n, work(SHARED, (0, 2, 3), start, f"end {c}", judge=True), client=c) for c in (0, 2, 3))
        )
        assert sorted(result.bytes for result in results) == [0, 0, before.buffer.nbytes]
        assert np.array_equal((await n.store.get("begin")).buffer, before.buffer)
        for client, result in zip((0, 2, 3), results, strict=True):
            judged = discriminators.judge(before, seen(client), client, (0, 2, 3), SHARED, Control())
            assert result.correct == judged
        assert np.array_equal((await n.store.get("end 2")).buffer, stepped(before, SHARED, (0, 2, 3), 0).buffer)


# --- orders that cannot be carried out


@pytest.mark.parametrize(
    ("what", "client", "code"),
    [
        (work(settings=None), CLIENT, FailureCode.BAD_ORDER),
        (work(others=()), CLIENT, FailureCode.BAD_ORDER),
        (work(others=(0, CLIENT)), CLIENT, FailureCode.BAD_ORDER),
        (work(others=(0, 0)), CLIENT, FailureCode.BAD_ORDER),
        (work(SHARED, (0, 3)), CLIENT, FailureCode.BAD_ORDER),
        (work(SHARED, (CLIENT,)), CLIENT, FailureCode.BAD_ORDER),
        (work(dataclasses.replace(PAIRS, samples=0)), CLIENT, FailureCode.BAD_ORDER),
        (work(dataclasses.replace(PAIRS, samples=12)), CLIENT, FailureCode.BAD_ORDER),
        (work(dataclasses.replace(PAIRS, batch_size=0)), CLIENT, FailureCode.BAD_ORDER),
        (work(dataclasses.replace(PAIRS, learning_rate=float("inf"))), CLIENT, FailureCode.NOT_FINITE),
        (work(dataclasses.replace(PAIRS, learning_rate=float("nan"))), CLIENT, FailureCode.NOT_FINITE),
        (work(start=Start("begin", ())), CLIENT, FailureCode.NO_SUCH_MODEL),
        (work(start=Start("start", HERE)), CLIENT, FailureCode.WRONG_SHAPES),
        (work(), 9, FailureCode.UNKNOWN_CLIENT),
    ],
)
async def test_an_order_that_cannot_be_carried_out_breaks_its_promise_with_the_reason(
    what: Discriminate, client: int, code: FailureCode
) -> None:
    async with node() as n:
        reader = asyncio.create_task(n.do(SendUp("end")))
        failure = await why_not(do(n, what, client=client))
        assert failure.code is code
        assert await why_not(reader) == failure


async def test_the_client_of_an_order_that_failed_can_go_on() -> None:
    async with node() as n:
        await why_not(do(n, work(dataclasses.replace(PAIRS, samples=0), produces="failed")))
        await do(n, work())
        assert np.array_equal(
            (await n.store.get("end")).buffer, stepped(fresh(PAIRS, (0, 3)), PAIRS, (0, 3), 0).buffer
        )


class Regression(Blobs):
    def data(self, client: int) -> ClientData:
        data = super().data(client)
        return ClientData(Split(data.train.x, data.train.y.astype(np.float32)), data.test)


class Silent(Blobs):
    def features(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x), 6), torch.nan)


class Broken(Blobs):
    def features(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such layer")


@pytest.mark.parametrize(
    ("task", "detail"),
    [(Regression(), "one class label per sample"), (Silent(), "NaN"), (Broken(), "RuntimeError: no such layer")],
)
async def test_a_task_whose_samples_cannot_be_told_apart_fails_the_order(task: Blobs, detail: str) -> None:
    async with node(task) as n:
        failure = await why_not(do(n, work()))
        assert failure.code is FailureCode.TASK_RAISED
        assert detail in failure.detail


# --- called off


class Waiting(Blobs):
    """Encodes when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.open = threading.Event(), threading.Event()

    def features(self, x: torch.Tensor) -> torch.Tensor:
        self.reached.set()
        self.open.wait(10)
        return super().features(x)


async def test_an_order_that_is_called_off_stops_and_keeps_nothing() -> None:
    task = Waiting()
    async with node(task) as n:
        held = len(n.store)
        running = asyncio.create_task(do(n, work()))
        assert await asyncio.to_thread(task.reached.wait, 10)
        running.cancel()
        task.open.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(n.store) == held
        assert n.slot.mark == 1  # of an encoding and two steps
        await do(n, work())  # and the next order is carried out


@pytest.mark.parametrize("training", [False, True], ids=["encoding", "training"])
async def test_an_order_that_a_closing_node_stops_was_called_off(training: bool) -> None:
    task, clients = Waiting(), None
    async with Channels() as channels:
        clients, store, slot = Clients(task, None), ModelStore(), Slot()
        worker = Worker(clients, store, Fetcher(store, channels, clients.tensors, "127.0.0.1"), slot)
        worker.open("run")
        forever = work(dataclasses.replace(PAIRS, steps=2**31))
        order = Order(OrderKey(1, "discriminate", 0, 0), CLIENT, forever)
        running = asyncio.create_task(worker.carry_out(order, _no_upload))
        assert await asyncio.to_thread(task.reached.wait, 10)
        if training:
            task.open.set()
            while worker.mark < 10:
                await let_others_run()
        slot.close()
        task.open.set()
        assert (await why_not(running)).code is FailureCode.CANCELLED
        assert (await why_not(store.get("end"))).code is FailureCode.CANCELLED
