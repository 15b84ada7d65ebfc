"""The task digits: 1,797 images of 8 x 8 pixels that scikit-learn contains, so nothing is downloaded."""

from dataclasses import replace

import numpy as np
from torch import nn

from fedgsp.partitions import partition_indices
from fedgsp.seeds import stream
from fedgsp.task import ClientData, Split
from fedgsp_node.tasks.dealing import Dealt, DealtTask, deal_shifted, own_rows
from fedgsp_node.tasks.reading import digits
from fedgsp_node.tasks.shifts import SHIFTS


class Digits(DealtTask):
    """Divides the digits among clients, by default with different label distributions. Clients test on own samples.

    docs/tasks.md describes the options. Raises TaskError for wrong options.
    """

    extractor = "6"  # the pooling

    def __init__(
        self,
        clients: int | None = None,
        partition: str = "dirichlet",
        alpha: float | None = None,
        min_size: int | None = None,
        shards_per_client: int | None = None,
        shards: int | None = None,
        test_share: float | None = None,
        decay: float | None = None,
        validation_share: float = 0.0,
        seed: int = 0,
    ) -> None:
        numbers = {"alpha": alpha, "min_size": min_size, "shards_per_client": shards_per_client, "shards": shards}
        images, labels = digits()
        samples = Split((images / 16).astype(np.float32).reshape(-1, 1, 8, 8), labels.astype(np.int64))
        if partition in SHIFTS:
            # With the decays of the papers, small clients would have no samples, because there are few digits.
            options = {**numbers, "test_share": test_share, "decay": 2.0 if decay is None else decay}
            dealt = deal_shifted(samples, self.num_classes, partition, clients, options, seed)
        else:
            numbers["decay"] = decay
            parts = partition_indices(
                partition, samples.y, 24 if clients is None else clients, stream(seed, "partition"), numbers, SHIFTS
            )
            test_share = 0.2 if test_share is None else test_share
            dealt = Dealt(samples, samples, own_rows(samples.y, parts, test_share, seed))
        self._dealt = replace(dealt, validation_share=validation_share, seed=seed)

    def model(self) -> nn.Module:
        """A CNN with two convolutions and 10,026 parameters."""
        return nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            # Normalises each sample. It learns as fast as batch norm, and has no buffers that must be sent.
            nn.GroupNorm(1, 16),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.GroupNorm(1, 32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )

    def data(self, client: int) -> ClientData:
        """Images as float32 of shape (n, 1, 8, 8) from 0 to 1; labels as int64 of shape (n,)."""
        return self._dealt.client(client, lambda images: images)
