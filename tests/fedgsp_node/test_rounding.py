"""Rounding to bfloat16 is that of torch."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedgsp.messages import TensorSpec
from fedgsp.tensors.encoding import LARGEST, rounded
from fedgsp.tensors.weights import Weights

finite = st.integers(0, 2**32 - 1).filter(lambda bits: bits & 0x7F800000 != 0x7F800000)


@given(st.lists(finite, min_size=1, max_size=40))
@example([0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F8000, 0x7F7F7FFF, 0x7F7F0000])
@example([0x3F808000, 0x3F818000, 0x3F808001, 0x80000000, 0x00000001, 0x80008000])
@settings(deadline=None, max_examples=100)
def test_the_nearest_bfloat16_ties_to_even_and_never_infinite(bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16).float().clamp(-LARGEST, LARGEST).numpy()
    found = rounded(Weights.of({"w": values}, (TensorSpec("w", "float32", (len(bits),)),))).arrays["w"]
    assert found.tobytes() == expected.tobytes()


def test_the_largest_is_that_of_torch() -> None:
    assert torch.finfo(torch.bfloat16).max == LARGEST
    block = np.random.default_rng(0).standard_normal(100_000, np.float32)
    block[70_000] = 3.4e38
    expected = torch.from_numpy(block.copy()).to(torch.bfloat16).float().clamp(-LARGEST, LARGEST).numpy()
    found = rounded(Weights.of({"w": block}, (TensorSpec("w", "float32", (100_000,)),))).arrays["w"]
    assert found.tobytes() == expected.tobytes()
