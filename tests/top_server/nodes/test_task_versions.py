"""Nodes whose copies of the task's module differ train together, but not unnoticed."""

from __future__ import annotations

import pytest

from fedgsp.messages import AttachTo, Hello, RelayMode
from tests.support.callers import ANYBODY, ISSUER
from tests.support.hellos import hello, membership
from tests.support.recorder import Recorder
from top_server.nodes.membership import Membership
from top_server.nodes.node import Node

ONE, OTHER = b"\x01" * 32, b"\x02" * 32


async def joined(*said: Hello, task: str = "digits") -> list[tuple[str, str | None, str | None]]:
    """Node, digest and node that it differs from, as told of each that came."""
    recorder = Recorder()
    members = Membership("run-1", task, RelayMode.AUTO, recorder, ISSUER)
    for one in said:
        assert isinstance(await members.admit(one, ANYBODY), Node)
    return [(event["node"], event["task_digest"], event["differs_from"]) for event in recorder.of_kind("node_joined")]


@pytest.mark.parametrize(
    ("task", "remedy"), [("digits", "install the same version of fedgsp on both"), ("m:T", "give both the same file")]
)
async def test_a_node_with_another_version_of_the_task_is_admitted_with_an_event_and_a_warning(
    caplog: pytest.LogCaptureFixture, task: str, remedy: str
) -> None:
    said = [hello("n0", (0,), task=task, task_digest=ONE), hello("n1", (1,), task=task, task_digest=OTHER)]
    third = hello("n2", (2,), task=task, task_digest=ONE)
    assert await joined(*said, third, task=task) == [
        ("n0", "01" * 8, None),
        ("n1", "02" * 8, "n0"),
        ("n2", "01" * 8, None),
    ]
    assert caplog.messages == [
        f"node 'n1' has another version of the task (SHA-256 {'02' * 8}) than node 'n0', the first to join, had"
        f" ({'01' * 8}): {remedy}"
    ]


@pytest.mark.parametrize("digests", [(ONE, b""), (b"", ONE), (b"", b"")])
async def test_a_task_without_a_source_file_cannot_be_compared(
    caplog: pytest.LogCaptureFixture, digests: tuple[bytes, bytes]
) -> None:
    told = await joined(*(hello(f"n{i}", (i,), task_digest=digest) for i, digest in enumerate(digests)))
    assert told == [(f"n{i}", digest.hex()[:16] or None, None) for i, digest in enumerate(digests)]
    assert caplog.messages == []


async def test_the_first_node_is_also_reported_if_it_returns_with_another_version_of_the_task() -> None:
    members, recorder = membership()
    node = await members.admit(hello(task_digest=ONE), ANYBODY)
    assert isinstance(node, Node)
    members.attach("n0", AttachTo("m0", "127.0.0.1:7001"))  # there was work, so what it brought is the run's
    await members.leave(node, "its stream was lost")
    await members.admit(hello(task_digest=OTHER), ANYBODY)
    assert [event["differs_from"] for event in recorder.of_kind("node_joined")] == [None, "n0"]
