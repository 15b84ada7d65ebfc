"""A frozen encoder of small colour images, made by hand: which way brightness rises, and mean colours."""

from __future__ import annotations

import torch
from torch import nn

CELLS = 6
# Over CIFAR-10; what is left for the encoder to do is to put all figures on one scale.
_MEAN, _DEVIATION = 0.9, 0.45


@torch.no_grad()
def gradients_and_colours(x: torch.Tensor) -> torch.Tensor:
    """Normalised images of shape (n, 3, side, side) to (n, 252): 7 figures for each of 6 x 6 cells.

    4 say how strongly brightness rises to the right, the left, downwards and upwards, as a share of the whole image's
    rises; 3 are the mean colour. Each has mean 0 and deviation 1 over natural images, more or less. Directions are as
    few as that because finer ones tell images turned by 50 degrees apart more easily than by 180.
    """
    x = x.float()
    bright = nn.functional.pad(x.mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    right = bright[:, :, 1:-1, 2:] - bright[:, :, 1:-1, :-2]
    down = bright[:, :, 2:, 1:-1] - bright[:, :, :-2, 1:-1]
    rises = nn.functional.adaptive_avg_pool2d(torch.cat([right, -right, down, -down], dim=1).relu(), CELLS)
    # An image of one colour has no rises, and shares of 0. The root draws the few strong edges nearer to the rest.
    shares = (rises / rises.mean(dim=(1, 2, 3), keepdim=True).clamp(min=1e-6)).sqrt()
    colours = nn.functional.adaptive_avg_pool2d(x, CELLS)
    return torch.cat([(shares - _MEAN) / _DEVIATION, colours], dim=1).flatten(1)
