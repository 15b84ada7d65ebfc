"""Colour images reach the convolutions with channels last in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgsp_node.tasks.channels_last import ChannelsLast
from fedgsp_node.tasks.cifar10 import CropAndFlip
from fedgsp_node.tasks.digit_domains import DigitDomains

IMAGES = torch.arange(4 * 3 * 8 * 8, dtype=torch.float32).reshape(4, 3, 8, 8)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layer", [ChannelsLast(), CropAndFlip(np.zeros(3, np.float32))])
def test_layout_changes(layer: torch.nn.Module, training: bool) -> None:
    found = layer.train(training)(IMAGES)
    assert found.shape == IMAGES.shape
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_values_stay() -> None:
    assert torch.equal(ChannelsLast()(IMAGES), IMAGES)


def test_digit_domains_begin_with_it() -> None:
    first, *_ = DigitDomains(domains="digits,rendered", samples=20, width=0.05).model().children()
    assert isinstance(first, ChannelsLast)
