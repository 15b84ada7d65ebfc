from __future__ import annotations

import numpy as np
import pytest

from fedgsp.errors import ConfigError
from top_server.grouping import GROUPINGS, GroupingRequest

fixed = GROUPINGS["fixed"]


def plan(groups: str, *clients: int) -> tuple[tuple[int, ...], ...]:
    sizes = np.ones(len(clients), np.int64)
    request = GroupingRequest(1, 1, 0, clients, sizes, options={"groups": groups} if groups else {})
    found = fixed(request)
    found.check(request)
    return found.groups


def test_groups_are_those_that_are_written_and_the_others_are_alone() -> None:
    assert plan("2,0/3", 0, 1, 2, 3) == ((0, 2), (3,), (1,))
    assert plan("", 4, 5) == ((4,), (5,))


def test_clients_that_are_not_there_are_left_out() -> None:
    assert plan("0,9/8", 0, 1) == ((0,), (1,))


@pytest.mark.parametrize("groups", ["0,1/", "a", "0;1", "0,,1", "-1"])
def test_what_is_no_list_of_ids_is_refused(groups: str) -> None:
    with pytest.raises(ConfigError, match="option groups has"):
        plan(groups, 0, 1)


def test_a_client_cannot_be_in_two_groups() -> None:
    with pytest.raises(ConfigError, match="names client 1 twice"):
        plan("0,1/1", 0, 1)
