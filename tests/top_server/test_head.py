"""Schemes that keep heads with the clients need a model that has one, and something beside it."""

from __future__ import annotations

import pytest

from fedgsp.errors import ConfigError
from fedgsp.messages import TensorSpec
from top_server.choosing import check_head
from top_server.schemes import SCHEMES


def specs(*heads: bool) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(f"{number}", "float32", (2,), head=head) for number, head in enumerate(heads))


@pytest.mark.parametrize(
    ("heads", "what"), [((False, False), "has no classifier head"), ((True, True), "is all classifier head")]
)
def test_a_model_without_a_head_or_without_anything_else_is_refused(heads: tuple[bool, ...], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        check_head(SCHEMES["hcct-p"], specs(*heads))
    check_head(SCHEMES["hcct"], specs(*heads))


def test_a_head_beside_shared_layers_is_what_they_need() -> None:
    check_head(SCHEMES["hcct-p"], specs(False, True))
