from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.errors import PeerError
from fedgsp.v1 import grouping_pb2, grouping_pb2_grpc
from tests.support.serving import nobody, serving
from top_server import grouping_service
from top_server.grouping import GROUPINGS, GroupingRequest
from top_server.grouping_service import GroupingServicer, assign

Part = grouping_pb2.AssignRequest
Question = grouping_pb2.AssignQuestion
Spec = grouping_pb2.MatrixSpec


def evidence(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    updates = rng.normal(size=(count, 3))
    columns = {name: rng.random((count, 1)) for name in ("train_loss", "prior_distance")}
    pairwise = {"gram": updates @ updates.T, "distances": rng.random((count, count))}
    return {**pairwise, "costs": rng.random((count, 2)), **columns}


def request(count: int = 12, **changes: Any) -> GroupingRequest:
    rng = np.random.default_rng(count)
    fields: dict[str, Any] = {
        "round": 3,
        "groups": 3,
        "seed": 2**64 - 1,
        "clients": tuple(range(100, 100 + count)),
        "sizes": rng.integers(1, 50, count),
        "histograms": rng.integers(0, 9, (count, 4)),
        "matrices": evidence(rng, count),
    }
    return GroupingRequest(**{**fields, **changes})


def registered(servicer: grouping_pb2_grpc.GroupingServiceServicer) -> Callable[[grpc.aio.Server], None]:
    return lambda server: grouping_pb2_grpc.add_GroupingServiceServicer_to_server(servicer, server)


class Answers(grouping_pb2_grpc.GroupingServiceServicer):
    """Keeps what it is asked; answers these groups, or as it is told."""

    def __init__(self, *groups: Sequence[int], misbehave: Callable[[Any], Any] | None = None, note: str = "") -> None:
        self.groups = groups
        self.note = note
        self.misbehave = misbehave
        self.parts: list[Part] = []
        self.asked = asyncio.Event()

    async def Assign(self, requests: Any, context: Any) -> grouping_pb2.AssignResponse:  # noqa: N802
        self.asked.set()
        # To the end: if a call ends while it is asked, gRPC's client makes an internal error of what the server said.
        self.parts = [part async for part in requests]
        if self.misbehave is not None:
            await self.misbehave(context)
        groups = [grouping_pb2.ClientGroup(clients=group) for group in self.groups]
        return grouping_pb2.AssignResponse(groups=groups, note=self.note, warning=self.note)


async def test_what_a_service_says_of_its_choice_is_one_line_of_bounded_length() -> None:
    asked = request()
    plan = await asked_of(Answers(asked.clients, note="a\nb\x1b[31m" + "c" * 5000), asked)
    assert plan.note == plan.warning == r"a\nb\x1b[31m" + "c" * 992


async def asked_of(servicer: Answers, asked: GroupingRequest) -> Any:
    async with serving(registered(servicer)) as served:
        return await assign(served.channel, served.address, "icg", asked)


# --- our client and our server


@pytest.mark.parametrize("name", GROUPINGS)
@pytest.mark.parametrize("clients", [1, 12, 50])
async def test_a_plan_over_the_wire_is_the_plan_of_this_process(name: str, clients: int) -> None:
    asked = request(clients)
    async with serving(registered(GroupingServicer())) as served:
        plan = await assign(served.channel, served.address, name, asked)
    here = GROUPINGS[name](asked)
    assert plan.groups == here.groups
    assert sorted(plan.idle) == sorted(here.idle)
    assert (plan.note, plan.warning) == (here.note, here.warning)


async def test_options_arrive() -> None:
    asked = request(13, options={"mode": "all"})
    here = GROUPINGS["icg"](asked)
    assert here.groups != GROUPINGS["icg"](request(13)).groups, "else this test shows nothing"
    async with serving(registered(GroupingServicer())) as served:
        assert (await assign(served.channel, served.address, "icg", asked)).groups == here.groups


@pytest.mark.parametrize("dtype", ["int64", "float64", "float32"])
async def test_evidence_arrives_whole_in_parts_of_whole_rows(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping_service, "ROWS_BYTES", 100)
    matrix = np.arange(49).reshape(7, 7).astype(dtype).T
    asked = request(7, matrices={"distances": matrix}, histograms=np.zeros((7, 0), np.int64))
    servicer = Answers(asked.clients)
    await asked_of(servicer, asked)
    question, *rows = servicer.parts
    assert [(spec.name, spec.dtype, spec.rows, spec.columns) for spec in question.question.matrices] == [
        ("distances", dtype, 7, 7),
        ("histograms", "int64", 7, 0),
    ]
    assert all(len(part.rows.data) % matrix[:1].nbytes == 0 for part in rows)
    sent = b"".join(part.rows.data for part in rows if part.rows.name == "distances")
    assert np.array_equal(np.frombuffer(sent, dtype).reshape(7, 7), matrix)
    assert tuple(question.question.clients) == asked.clients
    assert list(question.question.sizes) == asked.sizes.tolist()


async def test_a_service_that_refuses_is_quoted() -> None:
    asked = request(options={"mdoe": "all"})
    async with serving(registered(GroupingServicer())) as served:
        with pytest.raises(PeerError, match=r"refused the question: .*mdoe") as caught:
            await assign(served.channel, served.address, "icg", asked)
        assert "--grouping-option" in caught.value.remedy
        with pytest.raises(PeerError, match=r"unknown grouping 'astrology'; this service knows .*icg"):
            await assign(served.channel, served.address, "astrology", request())


async def test_one_refusal_does_not_spoil_the_next_question() -> None:
    async with serving(registered(GroupingServicer())) as served:
        with pytest.raises(PeerError):
            await assign(served.channel, served.address, "nonsense", request())
        assert (await assign(served.channel, served.address, "single", request())).groups


# --- a service that misbehaves


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([], "the plan has no group"),
        ([[]], "group 0 of the plan is empty"),
        ([[100, 101], []], "group 1 of the plan is empty"),
        ([[100, 100]], "names client 100 twice"),
        ([[100], [101, 100]], "names client 100 twice, again in group 1"),
        ([[100, 99]], "not asked about: 99"),
        ([[2**64 - 1]], "not asked about: 18446744073709551615"),
        ([list(range(200))], "and 178 more"),
    ],
)
async def test_a_plan_that_makes_no_sense_is_refused(groups: list[list[int]], said: str) -> None:
    with pytest.raises(PeerError, match="sent a wrong plan") as caught:
        await asked_of(Answers(*groups), request(12))
    assert said in caught.value.what
    assert caught.value.remedy == "correct that service"


async def test_clients_that_a_plan_leaves_out_sit_the_round_out() -> None:
    plan = await asked_of(Answers([105, 101]), request(12))
    assert plan.groups == ((105, 101),)
    assert plan.idle == tuple(client for client in range(100, 112) if client not in (101, 105))


async def test_a_service_that_is_not_there_is_told() -> None:
    async with nobody() as served:
        with pytest.raises(PeerError, match=f"{served.address} did not answer: nothing listens at") as caught:
            await assign(served.channel, served.address, "icg", request())
    assert caught.value.remedy == "is a grouping service running there?"


async def test_a_service_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping_service, "ASSIGN_TIMEOUT_S", 0.1)

    async def hang(_: Any) -> None:
        await asyncio.Event().wait()

    with pytest.raises(PeerError, match="did not answer: DEADLINE_EXCEEDED"):
        await asked_of(Answers(misbehave=hang), request())


async def test_a_service_that_dies_while_it_is_asked_is_told() -> None:
    async def hang(_: Any) -> None:
        await asyncio.Event().wait()

    servicer = Answers(misbehave=hang)
    async with serving(registered(servicer)) as served:
        task = asyncio.create_task(assign(served.channel, served.address, "icg", request()))
        await servicer.asked.wait()
        await served.server.stop(None)
        with pytest.raises(PeerError, match="did not answer: "):
            await task


async def test_a_service_that_breaks_is_told() -> None:
    async def fail(_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(PeerError, match="did not answer: UNKNOWN"):
        await asked_of(Answers(misbehave=fail), request())


async def test_a_service_that_cancels_is_an_error_and_not_a_cancellation() -> None:
    async def cancel(context: Any) -> None:
        await context.abort(grpc.StatusCode.CANCELLED, "no time")

    with pytest.raises(PeerError, match="CANCELLED: no time"):
        await asked_of(Answers(misbehave=cancel), request())


async def test_another_server_is_no_grouping_service() -> None:
    async with serving() as served:
        # INTERNAL if it hung up while the question was on its way.
        with pytest.raises(PeerError, match=r"did not answer: (the process there does not know|INTERNAL)"):
            await assign(served.channel, served.address, "icg", request())


# --- a client that misbehaves


def question(*matrices: Spec, **changes: Any) -> Part:
    fields = {"grouping": "single", "round": 1, "groups": 1, "clients": [1, 2], "sizes": [3, 4], **changes}
    return Part(question=Question(**fields, matrices=matrices))


def rows(name: str, content: bytes) -> Part:
    return Part(rows=grouping_pb2.MatrixRows(name=name, data=content))


async def said_to(parts: list[Part] | AsyncIterator[Part]) -> str:
    """What our server refuses these parts with."""
    async with serving(registered(GroupingServicer())) as served:
        stub = grouping_pb2_grpc.GroupingServiceStub(served.channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Assign(parts, timeout=10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, caught.value
    return caught.value.details() or ""


TWO = Spec(name="d", dtype="float64", rows=2, columns=2)
REFUSED: dict[str, tuple[list[Part], str]] = {
    "nothing": ([], "the first part must be the question"),
    "an unset part": ([Part()], "the first part must be the question"),
    "rows first": ([rows("d", b"x")], "the first part must be the question"),
    "a question twice": ([question(), question()], "after the question come rows"),
    "an unset part after the question": ([question(TWO), Part()], "after the question come rows"),
    "rows of no matrix": ([question(TWO), rows("e", b"x")], "after the question come rows"),
    "rows without bytes": ([question(TWO), rows("d", b"")], "after the question come rows"),
    "a matrix cut short": ([question(TWO), rows("d", bytes(31))], "matrix 'd' was cut short"),
    "no rows at all": ([question(TWO)], "matrix 'd' was cut short"),
    "a byte too much": ([question(TWO), rows("d", bytes(32)), rows("d", b"!")], "more rows of matrix 'd'"),
    "2^60 bytes": ([question(Spec(name="d", dtype="float64", rows=2, columns=2**56))], "too large"),
    "columns that overflow": ([question(Spec(name="d", dtype="float64", rows=2, columns=2**63))], "too large"),
    "many large matrices": (
        [question(*(Spec(name=str(i), dtype="int64", rows=2, columns=2**27) for i in range(3)))],
        "matrix '2' of 2 x 134217728 is too large",
    ),
    "no rows and many columns": (
        [question(Spec(name="d", dtype="int64", columns=2**63), clients=[], sizes=[])],
        "",
    ),
    "rows for other clients": ([question(Spec(name="d", dtype="int64", rows=3, columns=2))], "3 rows for 2 clients"),
    "a matrix twice": ([question(TWO, TWO), rows("d", bytes(32))], "'d' is named twice"),
    "another dtype": ([question(Spec(name="d", dtype="object", rows=2, columns=2))], "has dtype 'object'"),
    "histograms that are no counts": (
        [question(Spec(name="histograms", dtype="float64", rows=2, columns=1)), rows("histograms", bytes(16))],
        "must be counts",
    ),
    "negative counts": (
        [question(Spec(name="histograms", dtype="int64", rows=2, columns=1)), rows("histograms", b"\xff" * 16)],
        "must be counts",
    ),
    "no clients": ([question(clients=[], sizes=[])], "count from 1"),
    "no groups": ([question(groups=0)], "count from 1"),
    "a client twice": ([question(clients=[1, 1])], "a client is listed twice"),
    "a size too few": ([question(sizes=[1])], "sizes have shape (1,) for 2 clients"),
    "a size beyond int64": ([question(sizes=[2**63, 1])], ""),
    "no histograms for icg": ([question(grouping="icg")], "needs class histograms"),
    "an unknown grouping": ([question(grouping="")], "unknown grouping ''"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_our_service_refuses(name: str) -> None:
    parts, said = REFUSED[name]
    assert said in await said_to(parts)


async def test_a_client_that_says_nothing_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping_service, "READ_TIMEOUT_S", 0.05)

    async def silence() -> AsyncIterator[Part]:
        yield question(TWO)
        await asyncio.Event().wait()

    assert "did not come" in await said_to(silence())


@given(
    st.sampled_from(sorted(GROUPINGS)),
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6, unique=True),
    st.integers(1, 2**32 - 1),
    st.data(),
)
@settings(deadline=None, max_examples=25)
async def test_any_well_formed_question_has_a_plan(
    name: str, clients: list[int], groups: int, data: st.DataObject
) -> None:
    counts = st.lists(st.integers(0, 2**20), min_size=len(clients) * 2, max_size=len(clients) * 2)
    histograms = np.array(data.draw(counts), np.int64).reshape(len(clients), 2)
    asked = request(
        len(clients), clients=tuple(clients), groups=groups, sizes=histograms.sum(axis=1), histograms=histograms
    )
    async with serving(registered(GroupingServicer())) as served:
        plan = await assign(served.channel, served.address, name, asked)
    assert sorted([client for group in plan.groups for client in group] + list(plan.idle)) == sorted(clients)
