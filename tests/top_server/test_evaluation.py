from __future__ import annotations

import pytest

from fedgsp.messages import Evaluated
from top_server.evaluation import Evaluation

TWO = {0: Evaluated(3, 4, 2.0, metrics={"auc": 0.9}), 5: Evaluated(1, 12, 6.0)}


def test_figures_are_over_all_samples_and_per_client() -> None:
    found = Evaluation(TWO)
    assert found.accuracy == pytest.approx(4 / 16)
    assert found.loss == pytest.approx(8 / 16)
    assert found.per_client == {0: 3 / 4, 5: 1 / 12}
    assert found.metrics == {"auc": {0: 0.9}}


def test_a_partial_evaluation_tells_clients_apart_but_nothing_over_all() -> None:
    found = Evaluation(TWO, partial=True)
    assert found.accuracy is None
    assert found.loss is None
    assert found.per_client == {0: 3 / 4, 5: 1 / 12}
