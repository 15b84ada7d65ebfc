"""A run in which no client has the figure that rates the models says so, and goes on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.support.cluster import nodes, play, settings
from tests.support.managers_here import managers_here

TASK = "tests.support.blobs_task:Mistyped"


async def test_a_score_that_no_client_has_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    managers_here(monkeypatch)
    config = settings(tmp_path, task=TASK, task_option={}, scheme="fedavg", rounds=2, min_clients=4)
    (node,) = nodes(range(4))
    run = await play(config, [dataclasses.replace(node, task=TASK, task_option={})])
    told = [record.getMessage() for record in caplog.records if "rates the models" in record.getMessage()]
    assert told == ["no client has a number for 'mea', which rates the models: is that its name?"]
    assert [(event["round"], event["clients"]) for event in run.of_kind("metric_left_out")] == [(1, [0, 1, 2, 3])]
    assert [row["score"] for row in run.rows] == [None, None]
