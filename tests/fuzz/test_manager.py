"""Nodes that say anything to a group manager, and what nobody has.

FEDGSP_FUZZ=1000 python -m pytest tests/fuzz --hypothesis-profile=default tries more, and others each time.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp import wire
from fedgsp.connections import channels
from fedgsp.connections.channels import Channels
from fedgsp.messages import (
    Describe,
    Described,
    Done,
    Evaluate,
    Evaluated,
    Failure,
    FailureCode,
    Fetched,
    ModelRef,
    NodeReport,
    Order,
    OrderProgress,
    Progress,
    Release,
    Reveal,
    Source,
    SourceKind,
    Start,
    Train,
    Trained,
)
from fedgsp.tensors.weights import WeightsError
from fedgsp.transfers.model_calls import fetch
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import order_pb2
from group_manager.group import Group
from group_manager.members import Members
from group_manager.shelves import Shelves
from tests.support.blobs_task import Blobs
from tests.support.callers import ISSUER
from tests.support.fuzzing import (
    ENDINGS,
    MOMENT_S,
    check_refusal,
    fuzzed,
    heard,
    path,
    said,
    say,
    soon,
    unharmed,
    until,
)
from tests.support.real_manager import ATTACH, KEY, MADE, REF, REPORTS, SETTINGS, START, manager, node, parrot, request

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

FORGET = path("GroupService", "Forget")
NODE_SAYS = said(order_pb2.NodeReport, REPORTS, ("n9", "n0", "run", "train", "made", "start"))


@fuzzed(25)
@given(
    streams=st.lists(st.tuples(st.booleans(), st.lists(NODE_SAYS, max_size=4), ENDINGS), min_size=1, max_size=2),
)
async def test_whatever_nodes_report_the_manager_lives_on(streams: list[tuple[bool, list[bytes], str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with unharmed(), manager() as m:
            for introduced, messages, ending in streams:
                patch.setattr(channels, "HELLO_TIMEOUT_S", 5.0 if introduced else 0.02)
                first = [REPORTS[0].SerializeToString()] if introduced else []
                call = m.channel.stream_stream(ATTACH)()
                await say(call, first, "silence")
                if introduced:
                    assert await m.members.wait_for({"n9"}, 5) == set()
                    ticket = m.members.submit("n9", Order(KEY, 0, Train(None, "made", SETTINGS)))
                await say(call, messages, ending)
                await heard(call, 0.01 if ending == "cancel" else MOMENT_S / 2)
                await until(lambda: not m.members._sessions)
                if introduced:
                    outcome = await soon(m.members.outcome(ticket, 1.0))
                    assert outcome is not None or any(b"made" not in message for message in messages)
                    if isinstance(outcome, Trained):
                        assert outcome.ref is None or outcome.ref.id == "made"
                        assert outcome.samples <= 2**48
            patch.setattr(channels, "HELLO_TIMEOUT_S", 5.0)
            async with node(m, "n0"):
                pass
            assert not m.store


async def reported(work: Any, result: Any) -> Any:
    members = Members()
    session = await members.attach("n9")
    ticket = members.submit("n9", Order(KEY, 0, work))
    members.report(session, Done(KEY, result))
    return await members.outcome(ticket, 1.0)


TRAIN = Train(None, "made", SETTINGS)


@pytest.mark.parametrize(
    ("work", "result", "why"),
    [
        (TRAIN, dataclasses.replace(MADE, ref=ModelRef("start")), "made model 'start'"),
        (TRAIN, MADE, "revealed 'made.update'"),
        (
            dataclasses.replace(TRAIN, reveal=Reveal("exact")),
            dataclasses.replace(MADE, update=REF),
            "revealed 'start'",
        ),
        (TRAIN, Trained(ModelRef("made"), 2**64 - 1), "18446744073709551615 samples"),
        (TRAIN, Trained(ModelRef("made"), bytes=2**64 - 1), "moved 18446744073709551615 bytes"),
        (Evaluate(None), Evaluated(3, 4, 0.0, judged=2), "3 right answers on 2"),
        (Evaluate(None), Evaluated(1, 2, 0.0, judged=2, squared_distance=float("nan")), "distance of nan"),
        (Describe(), Described((1, 2**64 - 1)), "samples of class 1"),
    ],
)
async def test_an_answer_that_cannot_be_is_a_failure(work: Any, result: Any, why: str) -> None:
    outcome = await reported(work, result)
    assert isinstance(outcome, Failure)
    assert outcome.code is FailureCode.BAD_ORDER
    assert why in outcome.detail


def raises_no_text() -> None:
    raise ValueError("\udcff")


@pytest.mark.parametrize(("count", "why"), [(lambda: {1: 0.5}, "TypeError"), (raises_no_text, "ValueError: ?")])
async def test_what_a_task_says_that_no_message_can_is_a_failure_of_that_order(count: Any, why: str) -> None:
    class Odd(Blobs):
        def correct(self, outputs: Any, targets: Any) -> Any:
            return count()

    async with manager() as m, node(m, "n0", Odd()) as store:
        store.put("start", START)
        start = Start("start", (Source(SourceKind.LOCAL, "n0"),))
        evaluated = m.members.submit("n0", Order(KEY, 0, Evaluate(start)))
        described = m.members.submit("n0", Order(dataclasses.replace(KEY, position=1), 0, Describe()))
        outcome = await m.members.outcome(evaluated, 20.0)
        assert isinstance(outcome, Failure)
        assert outcome.detail.startswith(why)
        assert isinstance(await m.members.outcome(described, 20.0), Described)


async def test_progress_that_repeats_itself_is_no_sign_of_life() -> None:
    members = Members()
    session = await members.attach("n9")
    ticket = members.submit("n9", Order(KEY, 0, TRAIN))
    members.report(session, Progress((OrderProgress(KEY, 7),)))
    ticket.touched = 0.0
    members.report(session, Progress((OrderProgress(KEY, 7),)))
    assert ticket.touched == 0.0
    members.report(session, Progress((OrderProgress(KEY, 8),)))
    assert ticket.touched > 0.0


async def test_what_a_node_says_of_its_start_counts_once_and_for_its_own_orders_only() -> None:
    members, told = Members(), list[bytes]()
    session, other = await members.attach("n9"), await members.attach("n8")
    ticket = members.submit("n9", Order(KEY, 0, TRAIN))
    ticket.start_came = lambda: told.append(ticket.start)
    members.report(other, Fetched(KEY, b"another"))
    members.report(session, Fetched(dataclasses.replace(KEY, position=9), b"another"))
    members.report(session, Fetched(None, b"another"))
    members.report(session, Fetched(KEY, b""))
    assert told == []
    members.report(session, Fetched(KEY, b"first"))
    members.report(session, Fetched(KEY, b"second"))
    assert told == [b"first"]


async def test_a_model_that_nobody_knows_of_is_not_waited_for() -> None:
    async with unharmed(), manager() as m:
        with pytest.raises(WeightsError) as refused:
            await soon(fetch(m.channel, "run/1/0/0.0", None, 100))
    assert refused.value.failure.code is FailureCode.NO_SUCH_MODEL


async def test_what_no_node_is_known_to_have_cannot_be_collected() -> None:
    m = Members()
    async with Channels() as to:
        group = Group(
            request("relay"),
            m,
            Shelves(ModelStore()).add(),
            to,
            Source(SourceKind.MANAGER, "m0"),
            ISSUER,
            lambda _: None,
        )
        found = await soon(group.models.collect("unheard of"))
    assert isinstance(found, Failure)
    assert found.code is FailureCode.NO_SUCH_MODEL


async def test_what_a_node_only_says_that_it_sent_is_not_waited_for() -> None:
    said_so = wire.encode(NodeReport(Done(KEY, None)))
    async with unharmed(), manager() as m, parrot(m, "n1", [said_so]):
        asked, me = request("relay"), Source(SourceKind.MANAGER, "m0")
        group = Group(asked, m.members, Shelves(m.store).add(), m.groups._channels, me, ISSUER, lambda _: None)
        group.orders.submit(asked.members[1], group.orders.key("train", 0), TRAIN)
        found = await soon(group.models.collect("made"))
        group.close("")
    assert found == Failure(FailureCode.NO_SUCH_MODEL, "node n1 did not send model 'made', but said so")


@fuzzed(10)
@given(message=said(order_pb2.Release, [wire.encode(Release(("start", "m"), True))], ("start",)))
async def test_whatever_is_to_be_forgotten_is_no_trouble(message: bytes) -> None:
    async with unharmed(), manager() as m:
        try:
            await soon(m.channel.unary_unary(FORGET)(message))
        except grpc.aio.AioRpcError as error:
            check_refusal(error)
