"""The ledger: whatever happens to a model, its holders are told to forget it once, and nothing stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fedgsp.messages import Member, ModelRef, Order, OrderKey, Part, Source, SourceKind, Trained
from group_manager.ledger import Copy, Ledger, LedgerError, Origin
from group_manager.sessions import PendingOrder
from tests.support.real_manager import REF, request

OLD, ELSEWHERE = Part(ModelRef("old"), "n1", 1.0, 1), Part(ModelRef("elsewhere"), "", 1.0)
READER, HOLDER = Member(1, "n2"), Source(SourceKind.NODE, "n1", "n1:1")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def pending(loop: asyncio.AbstractEventLoop, node: str = "n1") -> PendingOrder:
    key = OrderKey(1, "train", 0, 0, 0)
    return PendingOrder(key, node, None, loop.create_future(), 0.0, Order(key, 0, None))


def a_fetch(loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
    coroutine = asyncio.sleep(0)
    task = loop.create_task(coroutine)
    loop.run_until_complete(task)
    return task


def empty() -> Ledger:
    return Ledger(request("describe", start=None))


# --- what a request says


def test_a_start_without_parts_is_at_the_top_server_and_one_of_parts_is_made_here() -> None:
    assert Ledger(request("relay")).look(REF.id).origin is Origin.TOP_SERVER
    of_parts = Ledger(request("relay", start=ModelRef("mean"), parts=(OLD, ELSEWHERE)))
    assert of_parts.look("mean").origin is Origin.PARTS
    assert (of_parts.look("old").origin, of_parts.look("old").node) == (Origin.AT_NODE, "n1")
    assert of_parts.look("elsewhere").origin is Origin.TOP_SERVER


def test_older_models_are_never_forgotten_at_their_holders_but_their_copies_are(
    loop: asyncio.AbstractEventLoop,
) -> None:
    ledger = Ledger(request("relay", start=ModelRef("mean"), parts=(OLD, ELSEWHERE)))
    for model_id in ("old", "elsewhere", "mean"):
        assert ledger.provides(model_id)
        ledger.copy(model_id, Copy.COMING, a_fetch(loop))
        ledger.copy(model_id, Copy.HERE)
    assert ledger.release(["old"]) == []
    assert ledger.provides("old")
    tell, forget, _ = ledger.close("")
    assert (tell, sorted(forget)) == ([], ["elsewhere", "mean"])


# --- changes that cannot be


def test_a_model_cannot_be_promised_twice(loop: asyncio.AbstractEventLoop) -> None:
    ledger = empty()
    ledger.promise("m", pending(loop))
    with pytest.raises(LedgerError, match="promised twice"):
        ledger.promise("m", pending(loop), brings=True)


def test_a_model_cannot_be_fetched_twice_at_once(loop: asyncio.AbstractEventLoop) -> None:
    ledger = empty()
    ledger.copy("m", Copy.COMING, a_fetch(loop))
    with pytest.raises(LedgerError, match="is COMING, and cannot become COMING"):
        ledger.copy("m", Copy.COMING, a_fetch(loop))


def test_a_model_that_is_on_its_way_cannot_be_reserved(loop: asyncio.AbstractEventLoop) -> None:
    ledger = empty()
    ledger.copy("m", Copy.COMING, a_fetch(loop))
    with pytest.raises(LedgerError, match="is COMING, and cannot become RESERVED"):
        ledger.reserve("m")


def test_a_program_cannot_forget_a_reserved_model() -> None:
    ledger = empty()
    ledger.reserve("m")
    with pytest.raises(LedgerError, match="is RESERVED, and cannot become NONE"):
        ledger.forget_copy("m")


def test_a_model_that_nobody_promised_has_no_direct_reader() -> None:
    with pytest.raises(LedgerError, match="nobody has promised"):
        empty().expect_direct("m", READER, HOLDER)


# --- uploads that are expected


def test_an_upload_is_expected_while_it_is_fetched_or_its_maker_is_at_work(loop: asyncio.AbstractEventLoop) -> None:
    ledger, made = empty(), pending(loop)
    ledger.promise("brought", made, brings=True)
    ledger.promise("asked for", pending(loop))
    assert ledger.expects("brought")
    assert not ledger.provides("brought")
    assert not ledger.expects("asked for")
    ledger.copy("asked for", Copy.COMING, a_fetch(loop))
    assert ledger.expects("asked for")
    made.outcome.set_result(Trained(None))
    assert not ledger.expects("brought")


def test_a_model_that_was_given_up_is_not_expected_and_its_maker_is_told(loop: asyncio.AbstractEventLoop) -> None:
    ledger = empty()
    ledger.promise("m", pending(loop), brings=True)
    ledger.forget_copy("m")
    assert not ledger.expects("m")
    assert ledger.close("")[0] == [("n1", "m")]


def test_a_reader_that_came_by_another_way_is_named_once(loop: asyncio.AbstractEventLoop) -> None:
    ledger = empty()
    ledger.promise("m", pending(loop))
    ledger.expect_direct("m", READER, HOLDER)
    assert ledger.detour("m") == (READER, HOLDER)
    assert ledger.detour("m") is None


def test_a_model_that_is_released_while_it_comes_is_forgotten_at_the_end(loop: asyncio.AbstractEventLoop) -> None:
    ledger, task = empty(), a_fetch(loop)
    ledger.promise("m", pending(loop))
    ledger.copy("m", Copy.COMING, task)
    assert ledger.release(["m"]) == [("n1", "m")]
    assert ledger.close("") == ([], ["m"], [task])


# --- whatever happens

MODELS = st.sampled_from(["a", "b", "old", "elsewhere", "mean"])
NODES = st.sampled_from(["n1", "n2", "n3"])


class Lives(RuleBasedStateMachine):
    """Any course of any models, followed by a plain account of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.ledger = Ledger(request("relay", start=ModelRef("mean"), parts=(OLD, ELSEWHERE)))
        #: (node, model id) of what nodes hold and must be told to forget.
        self.held: set[tuple[str, str]] = set()
        #: Model id -> its maker, for models whose makers bring them: they may never have come.
        self.brought: dict[str, str] = {}
        self.here: set[str] = set()
        self.reserved: set[str] = set()

    def teardown(self) -> None:
        self.loop.close()
        holders = self.held | {(node, model_id) for model_id, node in self.brought.items()}
        tell, forget, _ = self.ledger.close("result")
        assert sorted(tell) == sorted(holders)
        assert set(forget) == (self.here | set(self.brought)) - self.reserved - {"result"}
        assert self.ledger.close("result") == ([], [], [])

    def told(self, model_id: str, tell: list[tuple[str, str]]) -> None:
        holders = {one for one in self.held if one[1] == model_id}
        assert sorted(holders) == sorted(tell)  # each once, and no node that holds nothing
        self.held -= holders

    @initialize()
    def a_result(self) -> None:
        self.ledger.copy("result", Copy.HERE)
        self.here.add("result")

    @rule(model_id=MODELS, node=NODES, brings=st.booleans())
    def promise(self, model_id: str, node: str, brings: bool) -> None:
        if self.ledger.look(model_id).maker is not None:
            with pytest.raises(LedgerError):
                self.ledger.promise(model_id, pending(self.loop, node), brings)
            return
        self.ledger.promise(model_id, pending(self.loop, node), brings)
        if brings:
            self.brought[model_id] = node
        else:
            self.held.add((node, model_id))

    @rule(model_id=MODELS, node=NODES)
    def keep(self, model_id: str, node: str) -> None:
        self.ledger.keep(model_id, node)
        self.held.add((node, model_id))

    @rule(model_id=MODELS)
    def fetch(self, model_id: str) -> None:
        if self.ledger.look(model_id).copy is not Copy.COMING:
            self.ledger.copy(model_id, Copy.COMING, a_fetch(self.loop))
            self.reserved.discard(model_id)
            self.here.add(model_id)

    @rule(model_id=MODELS)
    def fetched(self, model_id: str) -> None:
        if self.ledger.look(model_id).copy is Copy.COMING:
            self.ledger.copy(model_id, Copy.HERE)

    @rule(model_id=MODELS)
    def made_here(self, model_id: str) -> None:
        if self.ledger.look(model_id).copy is Copy.NONE:
            self.ledger.copy(model_id, Copy.HERE)
            self.here.add(model_id)

    @rule(model_id=MODELS)
    def reserve(self, model_id: str) -> None:
        if self.ledger.look(model_id).copy is not Copy.COMING:
            self.brought.pop(model_id, None)
            self.told(model_id, self.ledger.reserve(model_id))
            assert self.ledger.look(model_id).maker is None
            self.here.discard(model_id)
            self.reserved.add(model_id)

    @rule(model_id=MODELS, stays=st.booleans())
    def release(self, model_id: str, stays: bool) -> None:
        if model_id in self.reserved:
            return
        self.brought.pop(model_id, None)
        coming = self.ledger.look(model_id).copy is Copy.COMING
        maker = self.ledger.look(model_id).maker
        if stays and maker is not None:
            self.held.discard((maker.node, model_id))  # it is the client's now
        self.told(model_id, self.ledger.release([model_id], stays))
        if not coming:
            self.here.discard(model_id)

    @rule(model_id=MODELS)
    def give_up(self, model_id: str) -> None:
        if model_id in self.reserved:
            return
        if model_id in self.brought:
            self.held.add((self.brought.pop(model_id), model_id))
        if self.ledger.look(model_id).copy is not Copy.COMING:
            self.here.discard(model_id)
        self.ledger.forget_copy(model_id)

    @invariant()
    def records_are_sound(self) -> None:
        for model_id in ("a", "b", "old", "elsewhere", "mean"):
            record = self.ledger.look(model_id)
            assert (record.maker is not None) == (record.origin in (Origin.AT_MAKER, Origin.BRINGING))
            assert (record.fetch is not None) == (record.copy is Copy.COMING)
            assert (record.copy is Copy.RESERVED) == (model_id in self.ledger.reserved)
            idle = record.copy is Copy.NONE and not record.kept_by
            assert not (idle and record.origin is Origin.SETTLED)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=50, stateful_step_count=30)
