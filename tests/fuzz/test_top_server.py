"""Nodes that say anything to the top server, and askers of its grouping service that do.

FEDGSP_FUZZ=1000 python -m pytest tests/fuzz --hypothesis-profile=default tries more, and others each time.
"""

from __future__ import annotations

import asyncio
import dataclasses

import grpc
import grpc.aio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp import wire
from fedgsp.connections import channels
from fedgsp.messages import (
    Failure,
    FailureCode,
    Hello,
    HostedClient,
    MakeConstants,
    NodeMessage,
    TensorSpec,
    TopServerMessage,
    Welcome,
)
from fedgsp.v1 import grouping_pb2, grouping_pb2_grpc, membership_pb2, membership_pb2_grpc
from tests.support.callers import ANYBODY
from tests.support.fuzzing import (
    ENDINGS,
    MOMENT_S,
    SOON_S,
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
from tests.support.hellos import hello, membership
from tests.support.serving import serving
from top_server.grouping import GROUPINGS
from top_server.grouping_service import GroupingServicer
from top_server.nodes import servicer as servicer_module
from top_server.nodes.servicer import MembershipServicer

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

JOIN = path("MembershipService", "Join")
ASSIGN = path("GroupingService", "Assign")
HELLO: membership_pb2.NodeMessage = wire.encode(NodeMessage(hello(task_digest=bytes(32))))
NODE_SAYS = said(membership_pb2.NodeMessage, [HELLO], ("n0", "digits", "float32", "int8", "w", "h"))


@fuzzed(20)
@given(streams=st.lists(st.tuples(st.lists(NODE_SAYS, max_size=3), ENDINGS), min_size=1, max_size=4))
async def test_whatever_nodes_say_the_top_server_lives_on(streams: list[tuple[list[bytes], str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, "HELLO_TIMEOUT_S", 0.02)
        patch.setattr(servicer_module, "MAKE_TIMEOUT_S", 0.02)
        members, _ = membership()
        servicer = MembershipServicer(members)
        async with (
            unharmed(),
            serving(lambda server: membership_pb2_grpc.add_MembershipServiceServicer_to_server(servicer, server)) as s,
        ):
            join = s.channel.stream_stream(JOIN)
            for messages, ending in streams:
                seconds, first_s = (0.02, None) if ending == "cancel" else (MOMENT_S, SOON_S)
                answers, status = await heard(await say(join(), messages, ending), seconds, first_s=first_s)
                kinds = [
                    wire.decode(TopServerMessage, membership_pb2.TopServerMessage.FromString(a)).kind for a in answers
                ]
                assert all(isinstance(kind, Welcome | Failure | MakeConstants) for kind in kinds)
                # An admitted node stays, all others hear why not.
                assert ending == "cancel" or kinds or status is not None
                await until(lambda: members.nodes == 0)
            patch.setattr(channels, "HELLO_TIMEOUT_S", 5.0)
            last = await say(join(), [HELLO.SerializeToString()], "silence")
            welcome = membership_pb2.TopServerMessage.FromString(await soon(last.read()))
            assert isinstance(wire.decode(TopServerMessage, welcome).kind, Welcome)
            assert list(members.clients) == [0, 1]
            last.cancel()
            await until(lambda: members.nodes == 0 and not members.clients)


HUGE = TensorSpec("w", "int8", (2**63 - 1,))


@pytest.mark.parametrize(
    ("said_by_node", "code", "why"),
    [
        (hello(clients=(2**63,)), FailureCode.WRONG_TASK, "ids end at"),
        (hello(task_digest=bytes(3_000_000)), FailureCode.WRONG_PROTOCOL, "3000000 bytes, not 32"),
        (hello(clients=(), node="n1"), FailureCode.NO_CLIENTS, "no client"),
        (hello(tensors=(HUGE, dataclasses.replace(HUGE, name="v"))), FailureCode.WRONG_SHAPES, "2 tensors have"),
    ],
)
async def test_a_node_whose_numbers_are_out_of_bounds_is_refused(
    said_by_node: Hello, code: FailureCode, why: str
) -> None:
    members, _ = membership()
    refusal = await members.admit(said_by_node, ANYBODY)
    assert isinstance(refusal, Failure)
    assert (refusal.code, why in refusal.detail) == (code, True)
    assert members.nodes == 0


@pytest.mark.parametrize("samples", [(2**63, 5), (10, 2**64 - 1)])
async def test_a_client_with_more_samples_than_can_be_is_refused(samples: tuple[int, int]) -> None:
    members, _ = membership()
    refusal = await members.admit(dataclasses.replace(hello(), clients=(HostedClient(0, *samples),)), ANYBODY)
    assert isinstance(refusal, Failure)
    assert refusal.code is FailureCode.WRONG_TASK


async def test_a_node_of_a_name_without_end_is_told_so_in_few_words() -> None:
    members, _ = membership()
    await members.admit(hello("n" * 3_000_000), ANYBODY)
    refusal = await members.admit(hello("n" * 3_000_000, (7,)), ANYBODY)
    assert isinstance(refusal, Failure)
    assert len(refusal.detail) < 3000


# --- the grouping service

COUNT = 6
RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(COUNT, 3))
MATRICES = {
    "histograms": RNG.integers(0, 9, (COUNT, 3)),
    "gram": VECTORS @ VECTORS.T,
    "costs": RNG.random((COUNT, 2)),
    "distances": np.abs(VECTORS @ VECTORS.T) / 20,
}


def question(grouping: str) -> grouping_pb2.AssignRequest:
    specs = [
        grouping_pb2.MatrixSpec(name=name, dtype=matrix.dtype.name, rows=COUNT, columns=matrix.shape[1])
        for name, matrix in MATRICES.items()
    ]
    asked = grouping_pb2.AssignQuestion(
        grouping=grouping, round=30, groups=2, seed=1, clients=range(COUNT), sizes=[5] * COUNT, matrices=specs
    )
    return grouping_pb2.AssignRequest(question=asked)


ROWS = [
    grouping_pb2.AssignRequest(rows=grouping_pb2.MatrixRows(name=name, data=matrix.tobytes()))
    for name, matrix in MATRICES.items()
]
QUESTIONS = said(
    grouping_pb2.AssignRequest,
    [question(name) for name in GROUPINGS],
    (*GROUPINGS, *MATRICES, "float32", "int64", "mode", "all", "paper", "restarts", "clusters", "c", "3"),
)
#: Floats of all kinds in place of a matrix.
WILD = st.lists(st.floats(width=64), min_size=COUNT * COUNT, max_size=COUNT * COUNT)


@st.composite
def asked(draw: st.DrawFn) -> list[bytes]:
    rows = [row.SerializeToString() for row in ROWS]
    if draw(st.booleans()):
        at = draw(st.integers(1, 3))
        values = np.array(draw(WILD)[: MATRICES[list(MATRICES)[at]].size])
        part = grouping_pb2.MatrixRows(name=list(MATRICES)[at], data=values.tobytes())
        rows[at] = grouping_pb2.AssignRequest(rows=part).SerializeToString()
    elif draw(st.booleans()):
        rows[draw(st.integers(0, 3))] = draw(said(grouping_pb2.AssignRequest, ROWS, tuple(MATRICES)))
    first = draw(st.one_of(QUESTIONS, st.sampled_from([question(name).SerializeToString() for name in GROUPINGS])))
    return [first, *rows]


@fuzzed(50)
@given(messages=asked(), ending=ENDINGS)
@pytest.mark.filterwarnings("default")
async def test_whatever_is_asked_the_grouping_service_answers_or_refuses(messages: list[bytes], ending: str) -> None:
    servicer = GroupingServicer()
    async with (
        unharmed(),
        serving(lambda server: grouping_pb2_grpc.add_GroupingServiceServicer_to_server(servicer, server)) as s,
    ):
        call = s.channel.stream_unary(ASSIGN, response_deserializer=grouping_pb2.AssignResponse.FromString)
        asking = await say(call(), messages, ending)
        if ending == "end":
            try:
                plan = await soon(asking)
                busy = [client for group in plan.groups for client in group.clients]
                assert len(set(busy)) == len(busy)
            except grpc.aio.AioRpcError as error:
                check_refusal(error)
        else:
            await asyncio.sleep(0.01)
            asking.cancel()
        good = [message.SerializeToString() for message in (question("random"), *ROWS)]
        again = await soon(await say(call(), good, "end"))
        assert sum(len(group.clients) for group in again.groups) == COUNT
