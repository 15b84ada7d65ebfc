from __future__ import annotations

import logging

import pytest

from fedgsp.messages import Failure, FailureCode, OrderKey, Trained
from fedgsp.seldom import INTERVAL_S, MOST_CHARACTERS
from fedgsp_node.connections.attachment import OrderLog

TRAINED = Trained(None, samples=366, loss=0.958, seconds=0.24)


def key(round_number: int, group: int) -> OrderKey:
    return OrderKey(round_number, "train", group, 0, 0, "run")


def test_the_first_training_is_a_line_and_then_one_in_each_interval(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    log = OrderLog(lambda: now[0])
    with caplog.at_level(logging.INFO):
        for client in range(4):
            log.trained(key(1, 0), client, TRAINED)
        now[0] += INTERVAL_S
        log.trained(key(2, 1), 7, TRAINED)
        now[0] += INTERVAL_S
        log.trained(key(3, 1), 7, Trained(None, samples=1, loss=0.5, seconds=2.0))
    assert caplog.messages == [
        "round=1 group=0 client=0 trained on 366 samples in 0.2 s, loss 0.9580",
        "round=2 group=1 client=7 trained on 366 samples in 0.2 s, loss 0.9580"
        " (3 other trainings since the last line)",
        "round=3 group=1 client=7 trained on 1 sample in 2.0 s, loss 0.5000",
    ]
    assert log.trainings == 6


def test_failures_are_logged_seldom_beside_trainings_and_never_at_length(caplog: pytest.LogCaptureFixture) -> None:
    log = OrderLog(lambda: 0.0)
    for number in range(100):
        log.failed(key(number, 0), 1, Failure(FailureCode.BAD_ORDER, "x" * 10**6))
        log.ignored()
    with caplog.at_level(logging.INFO):
        log.trained(key(1, 0), 0, TRAINED)
    assert [len(message) for message in caplog.messages] == [MOST_CHARACTERS, len(caplog.messages[1])]
    assert caplog.messages[0].startswith("round=0 group=0 client=1 failed: bad order: xxx")
