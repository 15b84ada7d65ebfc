from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from top_server.grouping import GROUPINGS, GroupingRequest
from top_server.grouping.cheapest_model import choices, soft_choices

ifca = GROUPINGS["ifca"]

NAN = float("nan")


def request(losses: object = None, **options: str) -> GroupingRequest:
    matrices = {} if losses is None else {"costs": np.array(losses, np.float64)}
    count = len(matrices["costs"]) if matrices else 2
    clients = tuple(range(10, 10 + count))
    return GroupingRequest(1, 2, 0, clients, np.full(count, 5), matrices=matrices, options=options)


def quadratic_losses() -> NDArray[np.float64]:
    """Losses 0.5 * (w - c)^2 of clients c = 0, 1.6, 1.8, 4 under models w = 0.5, 3.0."""
    centres, models = np.array([0, 1.6, 1.8, 4]), np.array([0.5, 3.0])
    losses: NDArray[np.float64] = 0.5 * (models - centres[:, None]) ** 2
    return losses


def test_each_client_chooses_the_model_of_smallest_loss() -> None:
    assert choices(quadratic_losses()).tolist() == [0, 0, 1, 1]
    assert ifca(request(quadratic_losses())).groups == ((10, 11), (12, 13))


def test_of_equal_losses_the_first_model_is_chosen() -> None:
    assert choices(np.array([(1, 1, 1), (2, 1, 1), (1, 2, 1)])).tolist() == [0, 1, 0]
    many = np.random.default_rng(0).integers(0, 3, (1, 200)).astype(np.float64)
    assert soft_choices(many, 9).tolist() == [np.flatnonzero(many[0] == 0)[:9].tolist()]


def test_groups_come_in_the_order_of_their_models_and_an_unchosen_model_has_none() -> None:
    plan = ifca(request([(9, 9, 1, 9), (1, 9, 9, 9), (9, 9, 1, 9), (9, 9, 9, 1)]))
    assert plan.groups == ((11,), (10, 12), (13,))
    assert plan.idle == ()


def test_an_unknown_loss_is_not_chosen_and_a_client_without_any_idles() -> None:
    plan = ifca(request([(NAN, 5), (NAN, NAN), (np.inf, np.inf), (1, np.inf)]))
    assert plan.groups == ((13,), (10,))
    assert plan.idle == (11, 12)


def test_soft_choices_are_the_models_of_smallest_losses_in_their_order() -> None:
    losses = np.array([(3, 1, 2, 4), (1, 1, 1, 1), (NAN, 2, 9, 1)])
    assert soft_choices(losses, 2).tolist() == [[1, 2], [0, 1], [1, 3]]
    assert soft_choices(losses, 4).tolist() == [[0, 1, 2, 3]] * 3
    assert soft_choices(losses, 1)[:, 0].tolist() == choices(losses).tolist()


@pytest.mark.parametrize("losses", [None, np.empty((2, 0))])
def test_missing_losses_are_refused(losses: object) -> None:
    with pytest.raises(ConfigError, match=r"needs what each model costs each client .*; let clients report it"):
        ifca(request(losses))


def test_losses_that_say_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="no client has a finite cost"):
        ifca(request([(NAN, np.inf)]))
