"""A node that comes back with other data is let in, and the log and the record say so."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fedgsp.messages import Hello
from tests.support.callers import ANYBODY
from tests.support.hellos import hello, membership
from top_server.nodes import told_samples
from top_server.nodes.node import Node
from top_server.nodes.told_samples import ToldSamples


def said(clients: tuple[int, ...] = (0, 1), **changes: Any) -> Hello:
    """A hello in which the last client has other numbers of samples."""
    usual = hello("b", clients)
    *others, last = usual.clients
    return dataclasses.replace(usual, clients=(*others, dataclasses.replace(last, **changes)))


async def test_a_client_that_comes_back_with_other_data_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    members, recorder = membership()
    for one in (said(), said(), said(train_samples=1), said(train_samples=1)):
        node = await members.admit(one, ANYBODY)
        assert isinstance(node, Node)
        await members.leave(node, "its stream was lost")
    changed = "client 1 had 11 training samples, now 1"
    assert [event.get("other_data") for event in recorder.of_kind("node_joined")] == [None, None, changed, None]
    assert caplog.messages == [f"node b has joined with other numbers of samples than before: {changed}"]


def test_every_part_counts_and_only_some_clients_are_named() -> None:
    told = ToldSamples()
    many = tuple(range(9))
    assert told.changes(said(many)) == ""
    assert told.changes(said((8,), test_samples=1, validation_samples=2)) == (
        "client 8 had 5 test samples, now 1, had 0 validation samples, now 2"
    )
    usual = hello("b", many)
    without = tuple(dataclasses.replace(one, test_samples=0) for one in usual.clients)
    text = told.changes(dataclasses.replace(usual, clients=without))
    assert text.startswith("client 0 had 5 test samples, now 0; client 1 had")
    assert text.endswith("client 4 had 5 test samples, now 0; 4 more clients")


def test_a_node_that_names_ever_new_clients_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_samples, "MOST_CLIENTS", 2)
    told = ToldSamples()
    for clients in ((0, 1), (2, 3)):
        told.changes(said(clients))
    assert told._last.keys() == {0, 1}
