"""Weights that are not the model's: an order says which tensors it expects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import numpy as np
import pytest

from fedgsp.connections.channels import Channels
from fedgsp.messages import FailureCode, Source, SourceKind, Start, TensorSpec
from fedgsp.tensors.weights import Weights, WeightsError
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.fetching import Fetcher
from tests.support.serving import serving
from tests.support.weights import TENSORS, said, some_weights, vector

#: Larger than the model of TENSORS, which bounds what is taken of that.
LARGE = vector(1000)


@asynccontextmanager
async def fetching() -> AsyncIterator[tuple[Fetcher, ModelStore, ModelStore, Source]]:
    """A fetcher whose node trains a model of TENSORS, its store, and a manager's."""
    here, there = ModelStore(), ModelStore()

    def register(server: grpc.aio.Server) -> None:
        ModelServicer(there).add_to(server)

    async with serving(register) as served, Channels() as channels:
        source = Source(SourceKind.MANAGER, "m0", served.address)
        yield Fetcher(here, channels, TENSORS, "127.0.0.1"), here, there, source


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("without_head", [False, True])
async def test_what_is_expected_is_taken_in_place_of_the_model(keep: bool, without_head: bool) -> None:
    async with fetching() as (fetcher, here, there, source):
        sent = some_weights(tensors=LARGE)
        there.put("m", sent)
        weights, whence, size = await fetcher.get(Start("m", (source,), keep, without_head), LARGE)
        assert np.array_equal(weights.buffer, sent.buffer)
        assert weights.tensors == LARGE
        assert (whence, size) == (said(source, 4000), 4000)
        assert ("m" in here) == keep


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    "sent",
    [
        some_weights(),
        some_weights(tensors=vector(999)),
        some_weights(tensors=(TensorSpec("v", "float32", (1000,)),)),
        some_weights(tensors=(TensorSpec("w", "int32", (1000,)),)),
        some_weights(tensors=(*LARGE, TensorSpec("more", "float32", (1,)))),
    ],
    ids=["the model", "shape", "name", "dtype", "one more"],
)
async def test_anything_else_is_refused(sent: Weights, keep: bool) -> None:
    async with fetching() as (fetcher, here, there, source):
        there.put("m", sent)
        with pytest.raises(WeightsError) as caught:
            await fetcher.get(Start("m", (source,), keep), LARGE)
        assert caught.value.failure.code is FailureCode.WRONG_SHAPES
        assert fetcher.mark == 0
        assert len(here) == 0


async def test_nothing_may_be_expected_too() -> None:
    """Which is not the same as expecting what is usual."""
    async with fetching() as (fetcher, _, there, source):
        there.put("m", some_weights())
        with pytest.raises(WeightsError, match="3 tensors where 0 are expected"):
            await fetcher.get(Start("m", (source,)), ())


async def test_without_expectations_it_is_the_model() -> None:
    async with fetching() as (fetcher, _, there, source):
        there.put("m", some_weights())
        there.put("other", some_weights(tensors=LARGE))
        assert (await fetcher.get(Start("m", (source,))))[0].tensors == TENSORS
        with pytest.raises(WeightsError):
            await fetcher.get(Start("other", (source,)))


async def test_orders_that_expect_the_same_share_a_fetch() -> None:
    async with fetching() as (fetcher, _, there, source):
        start = Start("m", (source,), keep=True)
        waiting = [asyncio.create_task(fetcher.get(start, LARGE)) for _ in range(3)]
        there.put("m", some_weights(tensors=LARGE))
        found = await asyncio.gather(*waiting)
        assert len({id(weights) for weights, *_ in found}) == 1
        assert [size for *_, size in found] == [4000, 0, 0]
