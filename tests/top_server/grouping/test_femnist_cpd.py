"""The paper's claim on real writers: ICG's groups are more alike than random ones (Fig. 3a)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from top_server.grouping import GROUPINGS, GroupingRequest
from top_server.grouping.cpd import cpd_median

WRITERS, CLASSES = 368, 62


@pytest.fixture(scope="module")
def histograms() -> np.ndarray:
    folder = os.environ.get("FEDGSP_DATA")
    if folder is None:
        pytest.skip("FEDGSP_DATA names no folder with data")
    counts = np.zeros((1500, CLASSES), np.int64)
    with np.load(Path(folder) / "femnist.npz") as arrays:
        np.add.at(counts, (arrays["writer_train"], arrays["y_train"]), 1)
    return counts[np.sort(np.random.default_rng(0).permutation(len(counts))[:WRITERS])]


@pytest.mark.parametrize("groups", [10, 50])
@pytest.mark.parametrize("seed", range(3))
def test_icg_groups_of_real_writers_are_more_alike_than_random_ones(
    histograms: np.ndarray, groups: int, seed: int
) -> None:
    def median(grouping: str) -> float:
        sizes = histograms.sum(axis=1)
        plan = GROUPINGS[grouping](GroupingRequest(1, groups, seed, tuple(range(WRITERS)), sizes, histograms))
        return cpd_median(np.stack([histograms[list(group)].sum(axis=0) for group in plan.groups]))

    assert median("icg") < 0.7 * median("random") < 0.7 * cpd_median(histograms)
