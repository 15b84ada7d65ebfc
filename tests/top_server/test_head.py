"""Schemes that keep heads with the clients need a model that has one, and something beside it."""

from __future__ import annotations

import pytest
from support.hellos import hello
from support.recorder import Recorder

from fedgsp.errors import ConfigError
from fedgsp.messages import RelayMode, TensorSpec
from top_server.membership import Membership
from top_server.schemes import SCHEMES
from top_server.server import check_head


def specs(*heads: bool) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(f"{number}", "float32", (2,), head=head) for number, head in enumerate(heads))


async def of_model(tensors: tuple[TensorSpec, ...]) -> Membership:
    membership = Membership("run", "digits", RelayMode.AUTO, Recorder())
    await membership.admit(hello("n0", (0,), tensors=tensors))
    return membership


@pytest.mark.parametrize(
    ("heads", "what"), [((False, False), "has no classifier head"), ((True, True), "is all classifier head")]
)
async def test_a_model_without_a_head_or_without_anything_else_is_refused(heads: tuple[bool, ...], what: str) -> None:
    membership = await of_model(specs(*heads))
    with pytest.raises(ConfigError, match=what):
        check_head(SCHEMES["hcct-p"], membership)
    check_head(SCHEMES["hcct"], membership)


async def test_a_head_beside_shared_layers_is_what_they_need() -> None:
    check_head(SCHEMES["hcct-p"], await of_model(specs(False, True)))
