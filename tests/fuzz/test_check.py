"""Nodes that ask anything when they are checked, and top servers that answer anything."""

from __future__ import annotations

import datetime as dt

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp import wire
from fedgsp.connections.channels import Channels
from fedgsp.messages import (
    PROTOCOL,
    About,
    AskAbout,
    CheckAnswer,
    CheckQuestion,
    Echo,
    Failure,
    FailureCode,
    WouldTake,
)
from fedgsp.report import Line
from fedgsp.settings.run import RunConfig
from fedgsp.v1 import check_pb2
from fedgsp_node.check import client
from fedgsp_node.check.facts import Certificate, Facts
from fedgsp_node.check.table import lines
from fedgsp_node.connections.dialling import Dialling
from fedgsp_node.policies.policy_file import policy_of
from tests.support.fuzzing import ENDINGS, SOON_S, fuzzed, heard, path, said, say, soon, speaking, unharmed
from tests.support.hellos import hello, membership
from tests.support.serving import serving
from top_server.asked import asked
from top_server.checking import servicer as module
from top_server.checking.listener import ManagerDoor
from top_server.checking.servicer import CheckServicer
from top_server.choosing import choose

CHECK = path("CheckService", "Check")
QUESTIONS = [wire.encode(CheckQuestion(kind)) for kind in (AskAbout(PROTOCOL), Echo(b"xyz"), hello())]
ASKED = said(check_pb2.CheckQuestion, QUESTIONS, ("n0", "digits", "float32", "w"))
ANSWERS = [
    wire.encode(CheckAnswer(kind))
    for kind in (
        About(PROTOCOL, {"fedgsp": "1"}, 1.5e9, "127.0.0.1:1", "7100-7199"),
        Echo(b""),
        Failure(FailureCode.WRONG_TASK, "no"),
        WouldTake(False, True),
        WouldTake(False, False, *asked(RunConfig(scheme="hcct"), choose(RunConfig(scheme="hcct")))),
    )
]
ANSWERED = said(check_pb2.CheckAnswer, ANSWERS, ("fedgsp", "127.0.0.1:1", "0.0.0.0:9"))


async def start(port: int) -> tuple[grpc.aio.Server, str]:
    raise AssertionError("there is no port to try")


@fuzzed(20)
@given(streams=st.lists(st.tuples(st.lists(ASKED, max_size=4), ENDINGS), min_size=1, max_size=4))
async def test_whatever_is_asked_the_top_server_answers_or_refuses(
    streams: list[tuple[list[bytes], str]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_S", 0.05)
        members, recorder = membership()
        servicer = CheckServicer(members, ManagerDoor(start, []))
        async with unharmed(), serving(servicer.add_to) as served:
            check = served.channel.stream_stream(CHECK)
            for messages, ending in streams:
                answers, _ = await heard(await say(check(), messages, ending), SOON_S)
                for answer in answers:
                    assert wire.decode(CheckAnswer, check_pb2.CheckAnswer.FromString(answer)).kind is not None
            patch.setattr(module, "MOST_S", SOON_S)
            last = await say(check(), [QUESTIONS[1].SerializeToString()], "end")
            assert wire.decode(CheckAnswer, check_pb2.CheckAnswer.FromString(await soon(last.read()))).kind == Echo(
                b"xyz"
            )
            assert (members.nodes, recorder.events) == (0, [])


@fuzzed(20)
@given(messages=st.lists(ANSWERED, max_size=4), ending=ENDINGS)
async def test_whatever_a_top_server_answers_a_check_has_its_lines(messages: list[bytes], ending: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ANSWER_S", "PACE_S"):
            patch.setattr(client, name, 0.05)
        async with (
            unharmed(),
            serving(speaking(CHECK, messages, ending)) as served,
            Channels() as channels,
        ):
            facts = Facts(address=served.address, now=0.0, protocol=PROTOCOL, own_versions={"fedgsp": "1"})
            facts.own = Certificate((), dt.datetime.fromtimestamp(0, dt.UTC), dt.datetime.fromtimestamp(2e9, dt.UTC))
            top = client.TopServer(served.address, channels, "n0", needs_key=False)
            await client.look(facts, top, Dialling(policy_of(None, {}), served.address), channels, None)
            found = lines(facts)
    assert all(isinstance(line, Line) and line.words for line in found)
    assert not any("\n" in str(line) or "\x1b" in str(line) for line in found)
