"""A layer that sets the memory layout in which convolutions of several channels are fastest."""

import torch
from torch import nn


class ChannelsLast(nn.Module):
    """Copies images into memory with the channels of a pixel side by side. Values and shape do not change.

    With this layout, CPUs train CNNs of colour images 1.2 to 1.4 times as fast and evaluate them 1.5 to 2.3 times as
    fast (measured by benchmarks/performance/layout.py).
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The images `x` of shape (n, channels, height, width), with the same shape and another layout."""
        return x.contiguous(memory_format=torch.channels_last)
