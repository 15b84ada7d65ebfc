"""A node that joins again and again does not fill the record with the names of its clients."""

from __future__ import annotations

import dataclasses

import pytest

from fedgsp.messages import Hello
from tests.support.callers import ANYBODY
from tests.support.hellos import hello, membership
from top_server.nodes import told_names
from top_server.nodes.node import Node
from top_server.nodes.told_names import ToldNames


def named(*names: str, node: str = "n0") -> Hello:
    said = hello(node, tuple(range(len(names))))
    clients = tuple(dataclasses.replace(one, name=name) for one, name in zip(said.clients, names, strict=True))
    return dataclasses.replace(said, clients=clients)


async def test_names_are_recorded_once_and_those_that_are_new() -> None:
    members, recorder = membership()
    for said in (named("Rome", "Oslo"), named("Rome", "Oslo"), named("Rome", "Bergen")):
        node = await members.admit(said, ANYBODY)
        assert isinstance(node, Node)
        await members.leave(node, "its stream was lost")
    told = [event.get("names") for event in recorder.of_kind("node_joined")]
    assert told == [{0: "Rome", 1: "Oslo"}, None, {1: "Bergen"}]


def test_of_each_node_only_so_many_bytes_of_names_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_names, "MOST_BYTES", 10)
    told = ToldNames()
    assert told.news(named("Rome")) == {0: "Rome"}
    assert told.news(named("Århus")) == {0: "Århus"}  # 6 bytes
    assert told.news(named("Oslo")) == {}
    assert told.news(named("Oslo", node="n1")) == {0: "Oslo"}
