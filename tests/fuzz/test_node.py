"""Top servers and managers that say anything to a node.

FEDGSP_FUZZ=1000 python -m pytest tests/fuzz --hypothesis-profile=default tries more, and others each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp import wire
from fedgsp.connections.channels import Channels
from fedgsp.errors import PeerError, UserError
from fedgsp.identity import TOP_SERVER
from fedgsp.messages import (
    Attached,
    AttachTo,
    Cancel,
    Describe,
    Described,
    Discriminate,
    DiscriminatorSettings,
    Evaluate,
    Failure,
    FailureCode,
    Initialise,
    Leave,
    Order,
    OrderKey,
    Recall,
    Recalled,
    Release,
    Reveal,
    SendUp,
    Source,
    SourceKind,
    Start,
    TopServerMessage,
    Train,
    Welcome,
    Work,
)
from fedgsp.security.tickets import Door
from fedgsp.security.tls_probe import NoServerError
from fedgsp.settings.run import NodeSettings
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import membership_pb2, order_pb2, order_pb2_grpc
from fedgsp_node.clients import Clients
from fedgsp_node.connections.attachment import Attachment
from fedgsp_node.fetching import Fetcher
from fedgsp_node.kept.personal_state import PersonalState
from fedgsp_node.server import _Node
from fedgsp_node.slot import Slot
from fedgsp_node.worker import Worker
from group_manager.members import Members
from group_manager.server import OrderServicer
from tests.support.blobs_task import Blobs
from tests.support.fuzzing import ENDINGS, MOMENT_S, fuzzed, path, said, soon, speaking, unharmed
from tests.support.serving import serving
from tests.support.working import HERE, SETTINGS, node, training, why_not

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

JOIN, ATTACH = path("MembershipService", "Join"), path("OrderService", "Attach")
MESSAGES: list[membership_pb2.TopServerMessage] = [
    wire.encode(TopServerMessage(kind))
    for kind in (
        Welcome("0123abcd"),
        AttachTo("m0", "127.0.0.1:1"),
        Failure(FailureCode.NAME_TAKEN, "taken"),
        Leave(True, "done"),
    )
]
TOP_SERVER_SAYS = said(membership_pb2.TopServerMessage, MESSAGES, ("m0", "127.0.0.1:1", "0.0.0.0:1", "run.alone"))
CLIENTS = Clients(Blobs(), None)


@asynccontextmanager
async def worker(state_dir: Path | None = None) -> AsyncIterator[tuple[Worker, ModelStore, Channels]]:
    store, slot = ModelStore(), Slot()
    clients = Clients(Blobs(), None, PersonalState(state_dir)) if state_dir else CLIENTS
    try:
        async with Channels() as channels:
            yield Worker(clients, store, Fetcher(store, channels, clients.tensors, "127.0.0.1"), slot), store, channels
    finally:
        slot.close()


@fuzzed(25)
@given(messages=st.lists(TOP_SERVER_SAYS, max_size=4), welcomed=st.booleans(), ending=ENDINGS)
async def test_whatever_a_top_server_says_a_node_waits_or_leaves_in_words(
    messages: list[bytes], welcomed: bool, ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("node")
    before = [MESSAGES[0].SerializeToString()] if welcomed else []
    async with (
        unharmed(),
        serving(speaking(JOIN, [*before, *messages], ending)) as top,
        worker(folder / "state") as (work, store, channels),
    ):
        settings = NodeSettings(insecure=True, top_server=top.address, name="n0", connect_timeout=MOMENT_S)
        living = _Node(settings, CLIENTS, channels, store, work, "", Door())
        try:
            # Welcomed, it stays for as long as the stream is open.
            with contextlib.suppress(TimeoutError, UserError):
                async with asyncio.timeout(MOMENT_S * 1.5):
                    ended = await living._join()
                assert isinstance(ended, Leave) or ended[1]
        finally:
            await living._managers.detach()
        assert [entry.name for entry in folder.iterdir()] == ["state"]


@pytest.mark.parametrize("run_id", ["", "../../x", "/x", "a\0b", "x" * 300, ".", "run.alone"])
async def test_a_run_whose_name_is_no_file_name_or_that_of_a_local_run_is_left(run_id: str, tmp_path: Path) -> None:
    said_first = wire.encode(TopServerMessage(Welcome(run_id))).SerializeToString()
    async with serving(speaking(JOIN, [said_first])) as top, worker(tmp_path) as (work, store, channels):
        living = _Node(NodeSettings(insecure=True, top_server=top.address), CLIENTS, channels, store, work, "", Door())
        with pytest.raises(UserError, match="the id of the run is"):
            await soon(living._join())


async def test_a_first_join_waits_for_a_run_that_is_being_stopped_and_for_no_other() -> None:
    for code in (FailureCode.RUN_STOPPED, FailureCode.RUN_OVER):
        refused = wire.encode(TopServerMessage(Failure(code, "not now"))).SerializeToString()
        async with serving(speaking(JOIN, [refused])) as top, worker() as (work, store, channels):
            settings = NodeSettings(insecure=True, top_server=top.address)
            joining = soon(_Node(settings, CLIENTS, channels, store, work, "", Door())._join())
            if code is FailureCode.RUN_STOPPED:
                assert await joining == (False, "not now")
            else:
                with pytest.raises(PeerError, match="refused this node: not now"):
                    await joining


@pytest.mark.parametrize(
    ("kind", "told"), [(NoServerError, "nobody is there"), (PeerError, "nobody is there; mend it")]
)
async def test_the_reason_for_no_connection_does_not_repeat_the_remedy_of_a_long_wait(
    kind: type[PeerError], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nowhere(*_: object) -> None:
        raise kind("nobody is there", "mend it")

    async with worker() as (work, store, channels):
        monkeypatch.setattr(channels, "to", nowhere)
        living = _Node(NodeSettings(top_server="127.0.0.1:1"), CLIENTS, channels, store, work, "", Door())
        assert await soon(living._join()) == (False, told)


async def test_a_manager_without_an_address_is_not_dialled(caplog: pytest.LogCaptureFixture) -> None:
    there = [MESSAGES[0], wire.encode(TopServerMessage(AttachTo("m0", "nowhere"))), MESSAGES[3]]
    async with (
        unharmed(),
        serving(speaking(JOIN, [message.SerializeToString() for message in there])) as top,
        worker() as (work, store, channels),
    ):
        living = _Node(NodeSettings(insecure=True, top_server=top.address), CLIENTS, channels, store, work, "", Door())
        assert await soon(living._join()) == Leave(True, "done")
        assert not len(living._managers)
    assert "manager=m0 cannot be dialled: 'nowhere' is not an address" in caplog.text


# --- orders

KEY = OrderKey(1, "train", 0, 0, 0, "run")
NETWORKS = DiscriminatorSettings(4, 1, 4, 0.01, 1)
START = Start("start", HERE)
WORKS: tuple[Work, ...] = (
    Train(START, "end", SETTINGS, Reveal("exact"), True),
    Train(Start("start", (Source(SourceKind.MANAGER, "m", "127.0.0.1:1"),)), "end", SETTINGS),
    Train(START, "pers", dataclasses.replace(SETTINGS, algorithm="pfedme", options={"lambda": "2"})),
    Evaluate(START, True, "start", SETTINGS, True),
    Describe(),
    Discriminate(None, "nets", (1, 2), NETWORKS),
    Discriminate(Start("nets", HERE), "", (1, 2), NETWORKS, True),
    Initialise("fresh", 1),
    SendUp("start"),
    Release(("end",), True),
    Recall("run/1/0/relay/", ("run/1/0/relay/0.0", "end")),
    Cancel(),
)
ORDERS: list[order_pb2.Order] = [
    wire.encode(Order(dataclasses.replace(KEY, position=place), 0, work)) for place, work in enumerate(WORKS)
]
WORDS = (
    "start",
    "end",
    "end.update",
    "nets",
    "fresh",
    "sgd",
    "per-fedavg",
    "ditto",
    "exact",
    "layer:0",
    "sketch:8",
    "steps",
    "run",
    "run/1/0/",
    "run/1/0/relay/0.0",
    "run/1/0/alone/0.0",
)
MANAGER_SAYS = said(order_pb2.Order, ORDERS, WORDS)
AGAIN = Order(OrderKey(9, "describe", 9, 9, 9, "run"), 0, Describe())


@fuzzed(40)
@given(orders=st.lists(MANAGER_SAYS, min_size=1, max_size=5), ending=ENDINGS)
async def test_whatever_a_manager_orders_the_node_lives_on(orders: list[bytes], ending: str) -> None:
    async with unharmed(), worker() as (work, store, channels):
        store.put("start", CLIENTS.initial_weights(0))
        async with serving(speaking(ATTACH, orders, ending)) as bad:
            life = Attachment(await channels.to(bad.address, TOP_SERVER), Attached("run", "n0", "m0"), work)
            serve = asyncio.create_task(life.serve())
            await asyncio.wait([serve], timeout=MOMENT_S)
            serve.cancel()
            (ended,) = await asyncio.gather(serve, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError) or ended[1]  # type: ignore[index]
        assert not store._waiting
        members = Members()

        def register(s: grpc.aio.Server) -> None:
            order_pb2_grpc.add_OrderServiceServicer_to_server(OrderServicer(members, "m0", "run"), s)

        async with serving(register) as good:
            life = Attachment(await channels.to(good.address, TOP_SERVER), Attached("run", "n0", "m0"), work)
            serve = asyncio.create_task(life.serve())
            assert await members.wait_for({"n0"}, 5) == set()
            assert isinstance(await soon(members.outcome(members.submit("n0", AGAIN), 5.0)), Described)
            serve.cancel()
            await asyncio.gather(serve, return_exceptions=True)


async def test_an_order_that_cannot_be_read_ends_the_attachment() -> None:
    async with unharmed(), worker() as (work, _, channels), serving(speaking(ATTACH, [b"\xff\xff"])) as bad:
        life = Attachment(await channels.to(bad.address, TOP_SERVER), Attached("run", "n0", "m0"), work)
        assert await soon(life.serve()) == (False, "its order cannot be read")


async def test_an_order_that_is_a_bomb_ends_the_attachment() -> None:
    """What becomes of each bomb before it is decoded is shown in `tests/security/test_bombs.py`."""
    bomb = order_pb2.Order(discriminate=order_pb2.Discriminate(others=bytes(1_000_000))).SerializeToString()
    async with unharmed(), worker() as (work, _, channels), serving(speaking(ATTACH, [bomb])) as bad:
        life = Attachment(await channels.to(bad.address, TOP_SERVER), Attached("run", "n0", "m0"), work)
        told = "its order is too large: discriminate.others has more than 500,000 items"
        assert await soon(life.serve()) == (False, told)


NO_DATA = dataclasses.replace(SETTINGS, batch_size=0)


@pytest.mark.parametrize(
    ("work", "code", "why"),
    [
        (dataclasses.replace(training("start", "end"), settings=NO_DATA), FailureCode.BAD_ORDER, "batches of 0"),
        (
            dataclasses.replace(training("start", "end"), settings=dataclasses.replace(SETTINGS, local_epochs=0)),
            FailureCode.BAD_ORDER,
            "0 local epochs",
        ),
        (training("start", "start"), FailureCode.BAD_ORDER, "start from itself"),
        (training("odd", "end"), FailureCode.WRONG_SHAPES, "model 'odd'"),
        (Evaluate(Start("odd", HERE), True), FailureCode.WRONG_SHAPES, "model 'odd'"),
        (Evaluate(START, compared_with="twisted"), FailureCode.WRONG_SHAPES, "has shapes [8, 6] and [6, 8]"),
        (
            Train(Start("x", (Source(SourceKind.NODE, "n1", "no address"),)), "end", SETTINGS),
            FailureCode.UNREACHABLE,
            "'no address' is not an address",
        ),
        (
            Discriminate(None, "nets", (1,), dataclasses.replace(NETWORKS, feature_scale=float("nan"))),
            FailureCode.BAD_ORDER,
            "scaled by nan",
        ),
        (
            Discriminate(None, "nets", tuple(range(1, 2_000_000)), NETWORKS),
            FailureCode.BAD_ORDER,
            "do not fit into memory",
        ),
        (
            Train(START, "end", dataclasses.replace(SETTINGS, algorithm="finetune", options={"steps": "9" * 30})),
            FailureCode.BAD_ORDER,
            "a whole number of at least 1",
        ),
    ],
)
async def test_an_order_that_cannot_be_carried_out_fails_with_a_reason(
    work: Work, code: FailureCode, why: str
) -> None:
    async with node() as n:
        weights = n.clients.initial_weights(0)
        first = n.clients.tensors[0]
        n.store.put("odd", weights.part(n.clients.tensors[:1]))
        twisted = dataclasses.replace(first, shape=first.shape[::-1])
        odd = weights.part((first,))
        n.store.put("twisted", type(weights)((twisted,), odd.buffer))
        failure = await why_not(n.do(work))
    assert (failure.code, why in failure.detail) == (code, True), failure


IDS = (
    "start",
    "end",
    "run/1/0/relay/0.0",
    "run/1/0/relay/1.0",
    "run/1/0/alone/0.0",
    "run/1/1/relay/0.0",
    "run/10/0/x",
)
ANY_ID = st.sampled_from((*IDS, "", "unheard of"))


@fuzzed(40)
@given(
    prefix=ANY_ID | ANY_ID.flatmap(lambda one: st.integers(0, len(one)).map(lambda size: one[:size])),
    wanted=st.lists(ANY_ID, max_size=3),
)
async def test_whatever_a_manager_recalls_only_models_of_its_group_that_nobody_retains_go(
    prefix: str, wanted: list[str]
) -> None:
    own = "run/1/0/alone/0.0"
    async with node() as n:
        for model_id in IDS:
            n.store.put(model_id, n.store.held("start"))
        n.worker._own.hold(0, "start", own)
        order = Order(dataclasses.replace(KEY, task="recall"), 0, Recall(prefix, tuple(wanted)))
        if not prefix.startswith("run/1/0/"):
            refused = await why_not(n.worker.carry_out(order, n._upload))
            assert refused.code is FailureCode.BAD_ORDER
            assert set(n.store._held) == set(IDS)
            return
        answer = await n.worker.carry_out(order, n._upload)
        there = [model_id for model_id in IDS if model_id.startswith(prefix)]
        assert answer == Recalled(tuple(model_id for model_id in there if model_id in wanted))
        gone = set(IDS) - set(n.store._held)
        assert gone == {model_id for model_id in there if model_id not in wanted and model_id != own}
        assert all(model_id.startswith("run/1/0/") for model_id in gone)


async def test_samples_encoded_at_many_scales_are_kept_at_one() -> None:
    async with node() as n:
        for scale in (0.5, 1.0, 2.0):
            await n.do(Discriminate(None, f"nets {scale}", (1,), dataclasses.replace(NETWORKS, feature_scale=scale)))
        assert len(n.worker._discriminating._samples) == 1
