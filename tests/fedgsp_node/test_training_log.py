from __future__ import annotations

import logging

import pytest

from fedgsp.messages import Trained
from fedgsp_node.attachment import INTERVAL_S, TrainingLog

TRAINED = Trained(None, samples=366, loss=0.958, seconds=0.24)


def test_the_first_training_is_a_line_and_then_one_in_each_interval(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    log = TrainingLog(lambda: now[0])
    with caplog.at_level(logging.INFO):
        for client in range(4):
            log.add(1, 0, client, TRAINED)
        now[0] += INTERVAL_S
        log.add(2, 1, 7, TRAINED)
        now[0] += INTERVAL_S
        log.add(3, 1, 7, Trained(None, samples=1, loss=0.5, seconds=2.0))
    assert caplog.messages == [
        "round=1 group=0 client=0 trained on 366 samples in 0.2 s, loss 0.9580",
        "round=2 group=1 client=7 trained on 366 samples in 0.2 s, loss 0.9580; 3 other trainings since the last line",
        "round=3 group=1 client=7 trained on 1 sample in 2.0 s, loss 0.5000",
    ]
    assert log.total == 6
