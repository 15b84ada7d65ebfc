"""A profile that asks nobody: numbers of samples are known."""

from __future__ import annotations

import numpy as np

from fedgsp.parts import NoOptions
from top_server.evidence import Evidence
from top_server.profiles.base import Profile

from .declared import SizeOptions


class Sizes(Profile[SizeOptions]):
    """Evidence `size`, shape (N, 1)."""

    async def gather(self, round_number: int) -> Evidence:
        """The training samples of each client, scaled."""
        hosted = self.context.membership.clients
        sizes = [[self.options.scale * client.train_samples] for client in hosted.values()]
        return Evidence(tuple(hosted), figures={"size": np.array(sizes).reshape(-1, 1)})


class Failing(Profile[NoOptions]):
    """Raises an exception when it is asked."""

    async def gather(self, round_number: int) -> Evidence:
        """Raises LookupError."""
        raise LookupError("nothing can be revealed here")
