"""Nodes that lack a part of another package, which the run needs."""

from __future__ import annotations

import dataclasses

import pytest

from fedgsp.messages import Failure, FailureCode, InstalledPart, RelayMode
from tests.support.callers import ANYBODY, ISSUER
from tests.support.hellos import hello
from tests.support.recorder import Recorder
from top_server.nodes.membership import Membership
from top_server.nodes.node import Node

NEEDED = InstalledPart("training", "slow-sgd", "outside-parts 1.0")


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ((), "it lacks training slow-sgd, and the run needs that of package outside-parts 1.0"),
        (
            (InstalledPart("training", "slow-sgd", "outside-parts 0.9"),),
            "it has training slow-sgd of package outside-parts 0.9, and the run needs that of ",
        ),
    ],
)
async def test_a_node_without_a_part_that_the_run_needs_is_refused_with_what_to_install(
    parts: tuple[InstalledPart, ...], told: str
) -> None:
    membership = Membership("run", "digits", RelayMode.AUTO, Recorder(), ISSUER, needed=[NEEDED])
    refusal = await membership.admit(dataclasses.replace(hello("n0", (0,)), parts=parts), ANYBODY)
    assert isinstance(refusal, Failure)
    assert refusal.code is FailureCode.MISSING_PART
    assert refusal.detail.startswith(told)
    assert "run `pip install outside-parts==1.0` on its machine" in refusal.detail


async def test_a_node_with_the_parts_that_the_run_needs_and_others_is_admitted() -> None:
    membership = Membership("run", "digits", RelayMode.AUTO, Recorder(), ISSUER, needed=[NEEDED])
    more = (NEEDED, InstalledPart("training", "another", "other-parts 2"))
    assert isinstance(await membership.admit(dataclasses.replace(hello("n0", (0,)), parts=more), ANYBODY), Node)
