from __future__ import annotations

import numpy as np
import pytest

from fedgsp.errors import ConfigError
from top_server.grouping import GROUPINGS, GroupingRequest

maxfl_hcct = GROUPINGS["maxfl-hcct"]

NAN = float("nan")


def request(
    loss: tuple[float, ...] = (), distance: tuple[float, ...] = (), round_number: int = 2, **options: str
) -> GroupingRequest:
    columns = {"train_loss": loss, "prior_distance": distance}
    matrices = {name: np.array(column)[:, None] for name, column in columns.items() if column}
    count = max(len(loss), len(distance), 3)
    clients = tuple(range(10, 10 + count))
    return GroupingRequest(round_number, 2, 0, clients, np.full(count, 5), matrices=matrices, options=options)


def test_clients_whose_loss_is_below_their_distance_train_together() -> None:
    plan = maxfl_hcct(request((0.5, 2.0, 0.1, 1.0), (0.4, 3.0, 0.2, 1.0)))
    assert plan.groups == ((10,), (11, 12), (13,))
    assert plan.idle == ()


def test_nobody_may_take_part_or_everybody() -> None:
    assert maxfl_hcct(request((1, 1, 1), (0, 0, 0))).groups == ((10,), (11,), (12,))
    assert maxfl_hcct(request((0, 0, 0), (1, 1, 1))).groups == ((10, 11, 12),)


def test_a_client_of_whom_nothing_is_known_is_alone() -> None:
    assert maxfl_hcct(request((0, NAN, 0, 0), (1, 1, NAN, 1))).groups == ((10, 13), (11,), (12,))


@pytest.mark.parametrize("known", [True, False])
def test_the_first_round_asks_nobody(known: bool) -> None:
    loss, distance = ((0.0, 0.0, 2.0), (1.0, 1.0, 1.0)) if known else ((), ())
    assert maxfl_hcct(request(loss, distance, round_number=1)).groups == ((10,), (11,), (12,))
    assert maxfl_hcct(request(loss, distance, round_number=1, first_epoch="all")).groups == ((10, 11, 12),)


def test_missing_evidence_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="needs matrix train_loss with one column; let clients report it"):
        maxfl_hcct(request())
    with pytest.raises(ConfigError, match="needs matrix prior_distance"):
        maxfl_hcct(request(loss=(1, 1, 1)))
