"""A node that joins again and again does not fill the audit log with the numbers of its clients."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from fedgsp.messages import MOST_CLIENTS_OF_NODE, HostedClient
from tests.support.callers import ANYBODY
from tests.support.hellos import hello, membership
from top_server import audit
from top_server.nodes import told_clients
from top_server.nodes.admission import MOST_JOINS
from top_server.nodes.node import Node
from top_server.nodes.told_clients import ToldClients
from top_server.record.audit import AuditLog

#: No two follow one another, so that each has a number of its own in the list.
SPARSE = tuple((1 << 62) + 2 * number for number in range(MOST_CLIENTS_OF_NODE))
LIST = ",".join(map(str, SPARSE))
DIGEST = hashlib.sha256(LIST.encode()).hexdigest()


async def test_the_clients_are_noted_once_and_later_by_their_number_and_digest(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path, "run-1", None) as log:
        log.note("began", run="run-1", certificate=None, settings="")
        members, _ = membership(audit=log)
        said = dataclasses.replace(hello(), clients=tuple(HostedClient(client, 1, 1) for client in SPARSE))
        for _ in range(MOST_JOINS):
            node = await members.admit(said, ANYBODY)
            assert isinstance(node, Node)
            await members.leave(node, "its stream was lost")
        log.close(finished=True, reason="")
    assert path.stat().st_size < 1.2 * len(LIST)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    first, *others = (line for line in lines if line["what"] == "admitted")
    assert first["clients"] == LIST
    assert [(line["clients_number"], line["clients_sha256"]) for line in others] == [
        (MOST_CLIENTS_OF_NODE, DIGEST)
    ] * (MOST_JOINS - 1)
    with path.open("rb") as file:
        assert audit.read(file).whats["admitted"] == MOST_JOINS


def test_clients_that_are_others_are_noted_again() -> None:
    told = ToldClients()
    for clients in (SPARSE[:100], SPARSE[:99], SPARSE[:100]):
        assert told.fields(hello(clients=clients)) == {"clients": ",".join(map(str, clients))}
    assert "clients" not in told.fields(hello(clients=SPARSE[:100]))
    assert "clients" in told.fields(hello("n1", SPARSE[:100]))


def test_of_each_node_only_so_many_bytes_of_clients_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_clients, "MOST_BYTES", 1_000)
    told = ToldClients()
    assert "clients" in told.fields(hello(clients=SPARSE[:40]))  # 799 bytes
    assert told.fields(hello(clients=SPARSE[:39])).keys() == {"clients_number", "clients_sha256"}
    assert "clients" in told.fields(hello(clients=SPARSE[:10]))  # 199 bytes
    assert told.fields(hello(clients=(0, 1, 2, 7))) == {"clients": "0-2,7"}  # as long as a digest, or shorter
    assert "clients" in told.fields(hello("n1", SPARSE[:40]))
