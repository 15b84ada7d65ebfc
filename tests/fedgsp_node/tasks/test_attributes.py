"""Attributes of a task that cannot be used are refused when it is loaded, by name and with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fedgsp
from fedgsp import Task
from fedgsp.errors import TaskError
from fedgsp.scoring import WAYS
from fedgsp_node.clients import Clients
from fedgsp_node.tasks.attributes import check_attributes
from tests.support.blobs_task import Blobs


def check(**attributes: Any) -> None:
    task = type("Changed", (Blobs,), attributes)()
    check_attributes("task 'it'", task, lambda name, otherwise: getattr(task, name, otherwise))


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError


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
        ({"extractor": torch.nn.Linear(4, 4)}, "extractor is Linear Linear.*; name a layer of the model, such as"),
        ({"extractor": 3}, "extractor is int 3; name a layer of the model, such as extractor = 'conv2', or None"),
        ({"data_is_repeatable": np.zeros(3)}, "data_is_repeatable is ndarray .*; write data_is_repeatable = True"),
        ({"drop_last": "no"}, "drop_last is str 'no'; write drop_last = True, or False"),
        ({"drop_last": None}, "drop_last is None"),
        ({"drop_last": 2}, "drop_last is int 2; write drop_last = True, or False"),
        ({"drop_last": 1.0}, "drop_last is float 1.0"),
        ({"ignore_index": 1.5}, "ignore_index is float 1.5; write a whole number, such as ignore_index = -100"),
        ({"ignore_index": True}, "ignore_index is bool True"),
        ({"ignore_index": 1 << 63}, "ignore_index is int 9223372036854775808"),
        ({"drop_last": Odd()}, "drop_last is Odd, whose repr"),
        ({"head": Odd()}, "head is Odd, whose repr"),
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
        {"extractor": "1", "data_is_repeatable": np.True_, "drop_last": True, "ignore_index": np.int64(255)},
        {"extractor": None, "data_is_repeatable": 0, "drop_last": 1},
        {"data_is_repeatable": np.False_, "drop_last": np.int64(1)},
    ],
)
def test_what_can_be_used_passes(attributes: dict[str, Any]) -> None:
    check(**attributes)


def test_without_an_extractor_clients_have_no_features() -> None:
    task = type("Changed", (Blobs,), {"extractor": None, "drop_last": 1})()
    assert fedgsp.check(task)
    assert Clients(task, [0]).features is None


def raises(self: Any) -> Any:
    return self.settings


class NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raises_what_has_no_text(self: Any) -> Any:
    raise NoTextError


#: All attributes of a task that are no methods.
ATTRIBUTES = [name for name in Task.__annotations__ if not name.startswith("_")]


@pytest.mark.parametrize("name", ATTRIBUTES)
@pytest.mark.parametrize(
    ("read", "what"),
    [(raises, "no attribute 'settings'"), (raises_what_has_no_text, "NoTextError: its text could not be made")],
)
def test_an_attribute_that_cannot_be_read_is_a_mistake_of_the_task(
    name: str, read: Callable[[Any], Any], what: str
) -> None:
    task = type("Changed", (Blobs,), {name: property(read, lambda self, value: None)})()
    with pytest.raises(TaskError, match=rf"task Changed: {name} cannot be read: .*{what}.*test_attributes\.py:\d+"):
        fedgsp.check(task)


@pytest.mark.parametrize("name", ["extractor", "data_is_repeatable"])
@pytest.mark.parametrize("value", [property(raises), property(raises_what_has_no_text), np.zeros(3)])
def test_clients_of_a_task_that_nobody_has_checked_tell_its_mistake(name: str, value: Any) -> None:
    task = type("Changed", (Blobs,), {name: value})()
    with pytest.raises(TaskError, match=f"the task's {name} raised"):
        Clients(task, [0])
