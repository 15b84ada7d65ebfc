"""Attributes of a task that cannot be used are refused when it is loaded, by name and with the remedy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedgsp import Task
from fedgsp.errors import TaskError
from fedgsp.scoring import WAYS
from fedgsp_node.tasks.attributes import check_attributes
from tests.support.blobs_task import Blobs


def check(**attributes: Any) -> None:
    task = type("Changed", (Blobs,), attributes)()
    check_attributes("task 'it'", task, lambda name, otherwise: getattr(task, name, otherwise))


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"score": 3}, "score is int 3"),
        ({"score": "-"}, "score is str '-'"),
        ({"score": "f1\x1b"}, "score is str"),
        ({"score": "loss"}, "score is 'loss', so that the worst models would be the best; write score = '-loss'"),
        ({"score": "-accuracy"}, "score is '-accuracy', .*; write score = 'accuracy'"),
        ({"combine": ["f1"]}, r"combine is list \['f1'\]"),
        ({"combine": {"f1": "median"}}, "combine has str 'median' for metric 'f1'; choose among samples, clients, "),
        ({"combine": {"f1": None}}, "combine has None for metric 'f1'"),
        ({"combine": {"loss": "clients"}}, "combine names 'loss', which every task has"),
        (
            {"combine": {"seconds": "sum"}},
            "'seconds', which is a column of the history; give that metric another name",
        ),
        ({"combine": {"": "clients"}}, "combine names metric ''"),
        ({"client_names": "Ghent"}, "client_names is str 'Ghent'"),
        ({"client_names": ("Ghent",)}, "client_names has 1 names for 4 clients"),
        ({"client_names": {4: "Ghent"}}, "client_names names client int 4; number the clients 0 .. 3"),
        ({"client_names": {"1": "Ghent"}}, "client_names names client str '1'"),
        ({"client_names": {1: "Gh\nent"}}, "client_names has str .* for client 1; a name has to be"),
        ({"client_names": {1: "7"}}, "client_names has str '7' for client 1"),
        ({"client_names": {1: 7}}, "client_names has int 7 for client 1"),
        ({"client_names": {1: "x" * 61}}, "a name has to be 1 to 60 characters"),
        ({"client_names": {1: "Ghent", 2: "Ghent"}}, "client_names has 'Ghent' twice; give each client another name"),
        (
            {"num_classes": 0, "loss": Task.loss},
            "has no num_classes; .* in Changed, or override loss",
        ),
        ({"num_classes": -1}, "num_classes is int -1"),
    ],
)
def test_what_cannot_be_used_is_refused(attributes: dict[str, Any], error: str) -> None:
    with pytest.raises(TaskError, match=f"^task 'it'.*{error}"):
        check(**attributes)


def loss(self: Any, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().mean()


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"score": "-mae", "combine": dict(zip("abcdefgh", WAYS, strict=False))},
        {"client_names": ("Ghent", "Lyon", "Oslo", "Zürich 2")},
        {"client_names": {2: "Charité"}},
        {"client_names": property(lambda self: {0: "Ghent"})},
        {"num_classes": 0, "loss": loss},
    ],
)
def test_what_can_be_used_passes(attributes: dict[str, Any]) -> None:
    check(**attributes)
