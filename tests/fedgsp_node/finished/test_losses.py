"""A loss that is no finite number does not count for all clients together, as in the run itself."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.fedgsp_node.finished.test_after_the_run import told
from tests.support.run_directories import trained, write
from tests.support.tokens_task import Endless


def test_a_loss_that_is_no_number_is_told_and_counts_no_more_than_for_the_top_server(tmp_path: Path) -> None:
    name = "tests.support.tokens_task:Endless"
    run = write(tmp_path / "run", Endless(), {"final": (trained(Endless(), 1), ())}, task=name)
    result = told("evaluate", run, "--task", name, "--json")
    assert "note: loss of client 1 is no finite number" in result.stderr
    assert "loss of client 0" not in result.stderr
    found = json.loads(result.stdout, parse_constant=pytest.fail)
    assert found["clients"]["1"]["loss"] is None
    assert found["together"]["loss"] == found["clients"]["0"]["loss"] > 0
    assert found["together"]["samples"] == 40
    each = [found["clients"][str(client)]["accuracy"] for client in range(2)]
    assert math.isclose(found["together"]["accuracy"], sum(each) / 2)
    assert "client 1: accuracy " in told("evaluate", run, "--task", name).stdout
