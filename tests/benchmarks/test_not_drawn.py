"""The flags that judge a model on writers whom its run did not draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.not_drawn import flags
from fedgsp.errors import ConfigError
from fedgsp.options import parse_clients
from fedgsp_node.tasks.femnist import Femnist

WRITERS = 9


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file in which the label of each image is its writer."""
    writers = np.repeat(np.arange(WRITERS), 2)
    part: dict[str, Any] = {"x": np.zeros((len(writers), 28, 28), np.uint8), "y": writers, "writer": writers}
    path = tmp_path / "femnist.npz"
    np.savez(path, **{f"{name}_{which}": array for name, array in part.items() for which in ("train", "test")})
    return path


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_others_are_all_writers_who_were_not_drawn(data: Path, seed: int) -> None:
    drawn = Femnist(data, writers=4, seed=seed)
    option, given, clients, ids = flags(data, 4, seed)
    assert (option, given, clients) == ("--task-option", f"writers={WRITERS}", "--clients")
    everybody = Femnist(data, writers=WRITERS, seed=seed)
    judged = {int(everybody.data(client).test.y[0]) for client in parse_clients(ids)}
    trained = {int(drawn.data(client).test.y[0]) for client in range(drawn.num_clients)}
    assert not judged & trained
    assert judged | trained == set(range(WRITERS))


def test_without_others_it_says_so(data: Path) -> None:
    with pytest.raises(ConfigError, match=r"all 9 writers of .* were drawn; give the --writers of the run"):
        flags(data, WRITERS, 0)
