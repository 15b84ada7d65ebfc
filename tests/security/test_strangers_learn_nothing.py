"""Errors tell a stranger nothing of the run, an honest node what it can mend, and the record everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.messages import (
    AskAbout,
    Attached,
    CheckAnswer,
    CheckQuestion,
    Failure,
    FailureCode,
    Hello,
    NodeMessage,
    NodeReport,
    RelayMode,
    TensorSpec,
    TopServerMessage,
)
from fedgsp.tensors.weights import WeightsError
from fedgsp.transfers.model_calls import fetch
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import check_pb2_grpc, membership_pb2, membership_pb2_grpc, order_pb2_grpc
from group_manager.members import Members
from group_manager.server import OrderServicer
from tests.support.callers import ANYBODY, ISSUER
from tests.support.hellos import hello
from tests.support.recorder import Recorder
from tests.support.serving import serving
from tests.support.weights import TENSORS
from top_server.checking.listener import ManagerDoor
from top_server.checking.servicer import CheckServicer
from top_server.nodes.membership import Membership
from top_server.nodes.servicer import MembershipServicer

RUN = "5ec4e7c0de"
HONEST, TASK, OPTION = "hospital-a", "secret.task:Make", "site-7"
#: What no stranger may read.
SECRETS = (RUN, HONEST, TASK, OPTION, "manager-9", "deep.layer")
FIRST = hello(HONEST, (0, 1), task=TASK, task_options={"site": OPTION})
TENSORS_OF_RUN = (TensorSpec("deep.layer.weight", "float32", (3, 3)), *TENSORS[1:])

#: What is wrong with a node -> its hello, and what it is told that it can mend.
STRANGERS: dict[str, tuple[Hello, str]] = {
    "task": (hello("x", (5,), task="guess"), "it has task 'guess', and the run has another: start it with the --task"),
    "client": (hello("x", (1,), task=TASK), "client 1 is already hosted by another node: choose other --clients"),
    "option": (
        hello("x", (5,), task=TASK, task_options={"site": "guess"}),
        "its task has site=guess, and the run has another value: give all the same --task-option",
    ),
    "classes": (hello("x", (5,), task=TASK, num_classes=3), "its task has 3 classes, and the run has another number"),
    "tensors": (hello("x", (5,), task=TASK), "its model has other tensors than the run's: give all nodes the same"),
    "features": (
        hello("x", (5,), task=TASK, tensors=TENSORS_OF_RUN, features=TensorSpec("f", "float32", (2,))),
        "its task names other features than the run has",
    ),
    "protocol": (hello("x", (5,), task=TASK, protocol=0), "install the same version of fedgsp"),
}


async def once(*messages: object) -> AsyncIterator[object]:
    for message in messages:
        yield message
    await asyncio.Event().wait()


async def joined(channel: grpc.aio.Channel, said: Hello) -> object:
    call = membership_pb2_grpc.MembershipServiceStub(channel).Join(once(wire.encode(NodeMessage(said))))
    try:
        answer: membership_pb2.TopServerMessage = await anext(aiter(call))
        return wire.decode(TopServerMessage, answer).kind
    finally:
        call.cancel()


@pytest.mark.parametrize("wrong", STRANGERS)
async def test_a_refused_node_learns_what_it_can_mend_and_the_record_has_the_rest(wrong: str) -> None:
    recorder = Recorder()
    membership = Membership(RUN, TASK, RelayMode.AUTO, recorder, ISSUER, {"site": OPTION})
    said, mends = STRANGERS[wrong]
    async with serving(
        lambda server: membership_pb2_grpc.add_MembershipServiceServicer_to_server(
            MembershipServicer(membership), server
        )
    ) as served:
        first = (
            FIRST if wrong not in ("tensors", "features") else hello(HONEST, (0,), task=TASK, tensors=TENSORS_OF_RUN)
        )
        assert not isinstance(await membership.admit(first, ANYBODY), Failure)
        refused = await joined(served.channel, said)
    assert isinstance(refused, Failure)
    assert mends in refused.detail
    assert [secret for secret in SECRETS if secret in refused.detail] == []
    (event,) = recorder.of_kind("node_refused")
    assert mends in event["reason"]
    assert wrong == "protocol" or any(secret in event["reason"] for secret in SECRETS)


@pytest.mark.parametrize(("manager", "run"), [("m0", "guess"), ("manager-9", "guess"), ("m0", RUN), ("", "")])
async def test_a_manager_names_neither_itself_nor_its_run(
    manager: str, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    servicer = OrderServicer(Members(), "manager-9", RUN)
    async with serving(lambda server: order_pb2_grpc.add_OrderServiceServicer_to_server(servicer, server)) as served:
        stub = order_pb2_grpc.OrderServiceStub(served.channel)
        call = stub.Attach(once(wire.encode(NodeReport(Attached(run, "stranger", manager)))))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(call))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "not the manager that you were told to attach to" in (caught.value.details() or "")
    assert [secret for secret in SECRETS if secret in (caught.value.details() or "")] == []
    (line,) = [message for message in caplog.messages if "was refused" in message]
    assert "\n" not in line
    assert repr(run) in line


async def test_a_model_that_failed_is_refused_without_the_reason_of_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = ModelStore()
    store.fail("guessed", Failure(FailureCode.TASK_RAISED, f"node {HONEST} in run {RUN}: no data of patient 7"))
    async with serving(ModelServicer(store).add_to) as served:
        with pytest.raises(WeightsError) as caught:
            await fetch(served.channel, "guessed", None, 1 << 20)
    assert caught.value.failure.code is FailureCode.NO_SUCH_MODEL
    assert "task_raised: this process cannot give that model" in caught.value.failure.detail
    assert [secret for secret in (*SECRETS, "patient") if secret in caught.value.failure.detail] == []
    assert any("patient 7" in message for message in caplog.messages)


@pytest.mark.parametrize("wrong", STRANGERS)
async def test_a_node_that_checks_itself_learns_no_more_than_one_that_joins(wrong: str) -> None:
    recorder = Recorder()
    membership = Membership(RUN, TASK, RelayMode.AUTO, recorder, ISSUER, {"site": OPTION})
    said, mends = STRANGERS[wrong]
    first = FIRST
    if wrong in ("tensors", "features"):
        first = replace(FIRST, tensors=TENSORS_OF_RUN, task_options={})
    assert not isinstance(await membership.admit(first, ANYBODY), Failure)
    known = len(recorder.events)
    checks = CheckServicer(membership, ManagerDoor(no_port, []))
    async with serving(checks.add_to) as served:
        call = check_pb2_grpc.CheckServiceStub(served.channel).Check()
        for question in (AskAbout(0), said):
            await call.write(wire.encode(CheckQuestion(question)))
        answers = [await call.read(), await call.read()]
        call.cancel()
    refused = wire.decode(CheckAnswer, answers[1]).kind
    assert isinstance(refused, Failure)
    assert mends in refused.detail
    assert [secret for secret in SECRETS if secret in str(answers)] == []
    assert len(recorder.events) == known  # the log of the top server has a line


async def no_port(port: int) -> Any:
    raise AssertionError("there is no port to try")
