"""What metrics() returns is told by its name if it is no number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedgsp.scoring import RATIO
from fedgsp_node.users_code import numbers


@pytest.mark.parametrize("wrong", ["good", None, torch.ones(2), [1.0, "many"]])
def test_what_is_no_number_is_named(wrong: Any) -> None:
    combine = {"f1": RATIO} if isinstance(wrong, list) else {}
    with pytest.raises((TypeError, ValueError), match=r"metrics\(\) returned .* for 'f1', which is no number"):
        numbers({"mae": 1.0, "f1": wrong}, combine)


def test_numbers_and_pairs_are_taken() -> None:
    assert numbers({"mae": torch.tensor(0.5), "f1": (1, 2)}, {"f1": RATIO}) == ({"mae": 0.5, "f1": 1.0}, {"f1": 2.0})
