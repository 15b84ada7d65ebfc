"""Which settings make two runs different."""

from __future__ import annotations

from typing import Any

import pytest

from fedgsp.settings.run import RunConfig
from top_server.choosing import choose
from top_server.compared import differing
from top_server.fitted import fitted


@pytest.mark.parametrize(
    ("found", "asked", "name"),
    [
        ({}, {}, ""),
        ({"rounds": 3}, {"rounds": 4}, "rounds"),
        ({"seed": 1}, {}, "seed"),
        ({"wire_dtype": "bfloat16"}, {}, "wire_dtype"),
        ({"beta": 2}, {}, ""),
        ({"beta": 2}, {"beta": 3}, "beta"),
        ({}, {"beta": 3}, "beta"),
        ({"grouping_option": {"mode": "all"}}, {}, ""),
        ({"grouping_option": {"mode": "all"}}, {"grouping_option": {"mode": "exact"}}, "grouping_option"),
        ({"grouping_option": {"prices": "true"}}, {}, "grouping_option"),
        ({"task_option": {"clients": "3"}}, {"task_option": {"clients": "4"}}, "task_option"),
        ({"task_option": {"data": "/a/x.npz,/a/y.npz"}}, {"task_option": {"data": "/b/x.npz,/b/y.npz"}}, ""),
        ({"task_option": {"data": "/a/x.npz"}}, {"task_option": {"data": "/a/z.npz"}}, "task_option"),
        ({"local_run": "/a/local-0"}, {"local_run": "/b/local-0"}, ""),
        ({"local_run": "/a/local-0"}, {}, "local_run"),
        ({"listen": "127.0.0.1:1", "metrics": "127.0.0.1:2"}, {}, ""),
    ],
)
def test_settings_that_affect_results_are_compared(found: dict[str, Any], asked: dict[str, Any], name: str) -> None:
    assert differing(RunConfig(**found), RunConfig(**asked)) == name


@pytest.mark.parametrize("scheme", ["fedgsp", "fedavg", "ifca", "kmeans", "fesem", "flsc", "hcct"])
def test_what_a_run_chooses_for_few_clients_is_not_another_setting(scheme: str) -> None:
    asked = RunConfig(scheme=scheme)
    recorded = fitted(asked, choose(asked), 5).config
    assert recorded != asked or scheme == "hcct"
    assert differing(recorded, asked) == ""
