"""What every grouping in the registry must keep."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fedgsp.errors import ConfigError
from top_server.choosing import TABLES
from top_server.grouping import GROUPINGS, GroupingRequest

every_grouping = pytest.mark.parametrize("name", GROUPINGS)


def request_for(clients: int, groups: int, seed: int = 0, **options: str) -> GroupingRequest:
    rng = np.random.default_rng([seed, clients])
    histograms = rng.multinomial(40, rng.dirichlet(np.full(5, 0.3), clients))
    updates = rng.normal(size=(clients, 3))
    return GroupingRequest(
        round=3,
        groups=groups,
        seed=seed,
        clients=tuple(range(100, 100 + clients)),
        sizes=histograms.sum(axis=1),
        histograms=histograms,
        matrices={
            "gram": updates @ updates.T,
            "costs": rng.random((clients, 3)),
            "distances": rng.random((clients, clients)),
            "train_loss": rng.random((clients, 1)),
            "prior_distance": rng.random((clients, 1)),
        },
        options=options,
    )


@every_grouping
@pytest.mark.parametrize(("clients", "groups"), [(1, 1), (7, 1), (7, 7), (7, 20), (20, 3), (20, 6), (20, 11)])
def test_every_client_is_in_one_group_or_idle(name: str, clients: int, groups: int) -> None:
    for seed in range(5):
        request = request_for(clients, groups, seed)
        GROUPINGS[name](request).check(request)


@every_grouping
def test_the_same_request_has_the_same_plan(name: str) -> None:
    assert GROUPINGS[name](request_for(20, 4)) == GROUPINGS[name](request_for(20, 4))


@every_grouping
def test_an_unknown_option_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"grouping {name} has no option 'colour'"):
        GROUPINGS[name](request_for(4, 2, colour="red"))
    with pytest.raises(ConfigError, match=f"grouping {name} has no option 'colour'"):
        GROUPINGS[name].read({"colour": "red"})


@every_grouping
def test_what_it_needs_is_there_to_be_chosen(name: str) -> None:
    for kind, needed in GROUPINGS[name].needs.items():
        assert set(needed) <= set(TABLES[kind])


def test_groupings_load_without_the_flow_solver() -> None:
    program = "import sys, top_server.grouping; sys.exit('ortools' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
