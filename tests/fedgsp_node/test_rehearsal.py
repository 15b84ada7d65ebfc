"""Tasks that would fail in every round are refused when the node starts."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp.errors import TaskError
from fedgsp.scoring import ONE_OUTPUT
from fedgsp.settings.run import NodeSettings
from fedgsp.task import ClientData, Split, Task
from fedgsp_node.clients import Clients
from fedgsp_node.connections.hello import hello_of
from fedgsp_node.declared import Declared
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs


def task_with(**methods: Any) -> Task:
    """The blobs, with these methods."""
    return type("Changed", (Blobs,), {name: lambda self, *a, m=method: m(*a) for name, method in methods.items()})()


def data_of(part: str, change: Any) -> Any:
    def data(client: int) -> ClientData:
        parts = Blobs().data(client)
        held = {"train": parts.train, "test": parts.test}
        return ClientData(**{**held, part: change(held[part])})

    return data


@pytest.mark.parametrize(
    ("method", "returns", "what"),
    [
        ("loss", None, r"loss\(\) returned NoneType"),
        ("loss", torch.zeros(2), r"loss\(\) returned a tensor of shape \(2,\)"),
        ("loss", torch.tensor(1.0), "a tensor without a gradient"),
        ("correct", 0.5, r"correct\(\) returned 0.5, not the number"),
        ("correct", torch.ones(2, dtype=torch.bool), r"correct\(\) returned Tensor, not the number"),
        ("correct", 3, r"the task's correct\(\) counts 3 of 2 samples; return the number of correct samples"),
        ("correct", -1, r"the task's correct\(\) counts -1 of 2 samples"),
        ("metrics", {1: 0.5}, r"metrics\(\) must return a dict from names to numbers"),
        ("metrics", {"auc": "high"}, r"metrics\(\) raised ValueError"),
        ("metrics", None, r"metrics\(\) must return a dict"),
    ],
)
def test_what_no_round_could_use_is_refused(method: str, returns: Any, what: str) -> None:
    clients = Clients(task_with(**{method: lambda outputs, targets: returns}), None)
    with pytest.raises(TaskError, match=what):
        clients.rehearse()


@pytest.mark.parametrize("loss", [nn.functional.mse_loss, nn.functional.l1_loss, nn.functional.smooth_l1_loss])
def test_a_loss_that_compares_each_output_with_the_targets_of_all_samples_is_refused(loss: Any) -> None:
    def broadcast(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss(outputs[:, :1], targets.float())  # (n, 1) and (n,)

    with pytest.raises(
        TaskError, match=r"shapes \(2, 1\) and \(2,\),.* all samples \(test_rehearsal.py:\d+\)"
    ) as caught:
        Clients(task_with(loss=broadcast), None).rehearse()
    assert "outputs.squeeze(1)" in caught.value.remedy
    Clients(task_with(loss=lambda outputs, targets: loss(outputs[:, 0], targets.float())), None).rehearse()


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("target", [torch.tensor(1.0), torch.zeros(1), torch.zeros(3)])
def test_a_loss_may_compare_all_outputs_with_one_target(target: torch.Tensor) -> None:
    Clients(task_with(loss=lambda outputs, _: nn.functional.mse_loss(outputs, target)), None).rehearse()


@pytest.mark.parametrize("method", ["loss", "correct", "metrics"])
def test_what_raises_is_named_with_its_line(method: str) -> None:
    def broken(outputs: Any, targets: torch.Tensor) -> Any:
        return outputs.no_such_thing

    with pytest.raises(TaskError, match=rf"{method}\(\).* raised AttributeError.*test_rehearsal.py:\d+"):
        Clients(task_with(**{method: broken}), None).rehearse()


@pytest.mark.parametrize(
    ("transform", "what"),
    [
        (lambda x, y, generator: None, r"transform\(\) returned NoneType; return \(x, y\)"),
        (lambda x, y, generator: x, r"transform\(\) returned Tensor; return \(x, y\)"),
        (lambda x, y, generator: (x, y, x), r"transform\(\) returned 3 values; return \(x, y\)"),
        (lambda x, y, generator: (x.numpy(), y), r"transform\(\) returned x with ndarray, not torch.Tensor"),
        (lambda x, y, generator: (x, None), r"transform\(\) returned y with NoneType, not torch.Tensor"),
        (lambda x, y, generator: ({"x": x, "mask": None}, y), r"transform\(\) returned x with NoneType"),
    ],
)
def test_a_transform_that_returns_no_batch_is_refused(transform: Any, what: str) -> None:
    with pytest.raises(TaskError, match=what):
        Clients(task_with(transform=transform), None).rehearse()


def test_an_error_without_a_line_of_the_task_names_no_line_of_fedgsp() -> None:
    task = task_with(data=data_of("train", lambda part: Split(part.x[:, :3], part.y)))
    task.model = lambda: nn.Sequential(nn.Linear(6, 3))  # type: ignore[method-assign]
    with pytest.raises(TaskError, match="raised RuntimeError: mat1 and mat2") as caught:
        Clients(task, None)
    assert ".py:" not in str(caught.value)


def test_a_test_part_that_the_model_does_not_take_is_refused() -> None:
    task = task_with(data=data_of("test", lambda part: Split(part.x[:, :3], part.y)))
    with pytest.raises(TaskError, match="samples of a test part raised RuntimeError"):
        Clients(task, None).rehearse()


def test_a_validation_part_that_the_model_does_not_take_is_refused() -> None:
    def data(client: int) -> ClientData:
        found = Blobs().data(client)
        return ClientData(found.train, found.test, Split(found.test.x[:, :3], found.test.y))

    with pytest.raises(TaskError, match="samples of a validation part raised RuntimeError"):
        Clients(task_with(data=data), None).rehearse()


def test_what_can_be_used_passes_and_changes_nothing() -> None:
    whole_float = task_with(correct=lambda outputs, targets: float(len(targets)))
    for task in (Blobs(), whole_float, task_with(metrics=lambda outputs, targets: {"ones": np.float32(1)})):
        clients = Clients(task, None)
        before = clients.initial_weights(0)
        clients.rehearse()
        assert np.array_equal(clients.initial_weights(0).buffer, before.buffer)
        assert clients.evaluate(1, before, Control()).samples == 5


class Segmentation(Blobs):
    """Its y are a class per pixel."""

    def model(self) -> torch.nn.Module:
        return torch.nn.Conv2d(1, 3, 1)

    def data(self, client: int) -> ClientData:
        part = Split(np.ones((4, 1, 2, 2), np.float32), np.zeros((4, 2, 2), np.int64))
        return ClientData(part, part)


def test_a_class_per_pixel_is_counted_by_pixel() -> None:
    clients = Clients(Segmentation(), None)
    clients.rehearse()
    assert clients.declared == Declared("accuracy", {}, ("class counts", "class labels"))
    assert clients.evaluate(0, clients.initial_weights(0), Control()).judged == 4 * 2 * 2


@pytest.mark.parametrize(
    ("returns", "what"),
    [
        ([1, 2], r"class_counts() returned shape (2,); return one count for each of the 3 classes"),
        ([[1, 2, 3]], "class_counts() returned shape (1, 3); return one count for each of the 3 classes"),
        ([1, -2, 3], "class_counts() returned -2 samples for a class; return numbers from 0 to"),
        ([1.5, 2, 3], "class_counts() returned counts that are no whole numbers; return numbers of samples"),
        (None, "class_counts() returned shape ()"),
    ],
)
def test_a_task_without_histograms_says_so_when_it_joins(
    returns: Any, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clients = Clients(task_with(class_counts=lambda train: returns), None)
    clients.rehearse()
    assert clients.declared.lacks == ("class counts",)
    assert f"no class histograms, which some schemes need: {what}" in caplog.text
    assert clients.declared.class_counts_failed is not None
    assert clients.declared.class_counts_failed.detail.startswith(what)
    with pytest.raises(OrderError) as refused:
        clients.class_counts(0)
    assert refused.value.failure.detail.startswith(what)


class Unreadable:
    """A data set with an item that cannot be read, beside the two that are tried."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, item: int) -> tuple[np.ndarray, int]:
        if item == 2:
            raise OSError("file 2.png is truncated")
        return np.ones(6, np.float32), item


def test_an_item_that_cannot_be_read_is_why_there_are_no_class_counts() -> None:
    clients = Clients(task_with(data=data_of("train", lambda part: Unreadable())), None)
    clients.rehearse()
    assert clients.declared.lacks == ("class counts",)
    told = hello_of(NodeSettings(task="digits"), clients, "n0", "").class_counts_failed
    assert told is not None
    assert "OSError: file 2.png is truncated (test_rehearsal.py:" in told.detail


def test_nothing_is_said_of_histograms_that_can_be_used(caplog: pytest.LogCaptureFixture) -> None:
    clients = Clients(task_with(class_counts=lambda train: np.array([0, 1, 2])), None)
    clients.rehearse()
    assert clients.class_counts(0) == (0, 1, 2)
    assert not caplog.records


@pytest.mark.parametrize(("combine", "names"), [({"rsme": "clients"}, "'rsme'"), ({"ones": "clients"}, "")])
def test_a_name_in_combine_that_metrics_does_not_return_is_told(
    combine: dict[str, str], names: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = task_with(metrics=lambda outputs, targets: {"ones": 1.0})
    task.combine = combine
    Clients(task, None).rehearse()
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == bool(names)
    assert all(f"combine names {names}, and metrics() returned 'ones'" in one for one in told)


def test_no_test_part_is_no_fault() -> None:
    Clients(task_with(data=data_of("test", lambda part: Split(part.x[:0], part.y[:0]))), None).rehearse()


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("wrong", [None, (np.zeros((3, 6)), np.zeros(3))])
def test_a_part_that_is_no_split_is_named(part: str, wrong: Any) -> None:
    with pytest.raises(TaskError, match=f"client 0's {part} is a {type(wrong).__name__}"):
        Clients(task_with(data=data_of(part, lambda _: wrong)), None)


def test_a_tensor_that_takes_gradients_is_no_array() -> None:
    graded = data_of("train", lambda part: Split(torch.ones(len(part), 6, requires_grad=True), part.y))
    with pytest.raises(TaskError, match=r"client 0.s x takes gradients; return x.detach"):
        Clients(task_with(data=graded), None)


def test_arrays_that_run_backwards_are_taken() -> None:
    backwards = Clients(task_with(data=data_of("train", lambda part: Split(part.x[::-1], part.y[::-1]))), [0])
    assert np.array_equal(backwards.training_part(0).x, Blobs().data(0).train.x[::-1])
    backwards.rehearse()


def test_figures_that_fail_in_a_round_cost_neither_accuracy_nor_loss(caplog: pytest.LogCaptureFixture) -> None:
    def one_class(outputs: torch.Tensor, targets: torch.Tensor) -> Any:
        raise ValueError("only one class present")

    clients = Clients(task_with(metrics=one_class), None)
    weights = clients.initial_weights(0)
    with caplog.at_level(logging.WARNING):
        found = clients.evaluate(1, weights, Control())
    assert found.metrics_failed is not None
    assert "ValueError: only one class present (test_rehearsal.py:" in found.metrics_failed.detail
    without = dataclasses.replace(found, metrics_failed=None)
    assert without == Clients(Blobs(), None).evaluate(1, weights, Control())
    assert "metrics() failed, so they are missing in the results: ValueError: only one class present" in caplog.text


class Regression(Blobs):
    """Its y are measurements."""

    num_classes = 0

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(6, 1)

    def data(self, client: int) -> ClientData:
        x = np.ones((5, 6), np.float32)
        return ClientData(Split(x, np.arange(5.0, dtype=np.float32)), Split(x[:3], np.zeros(3, np.float32)))

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs[:, 0] - targets).square().mean()

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> Any:
        return {"mae": float((outputs[:, 0] - targets).abs().mean())}


def changed(**attributes: Any) -> Clients:
    return Clients(type("Changed", (Regression,), attributes)(), None)


def test_a_regression_needs_no_count_of_correct_samples_and_is_rated_by_its_loss() -> None:
    clients = changed()
    clients.rehearse()
    assert clients.declared == Declared("-loss", {}, ("accuracy", "class counts", "class labels"))
    found = clients.evaluate(0, clients.initial_weights(0), Control())
    assert (found.correct, found.judged, found.samples, set(found.metrics)) == (0, 0, 3, {"mae"})


class TwoOutputs(Regression):
    """Its model returns a dict."""

    def model(self) -> torch.nn.Module:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.mean = nn.Linear(6, 1)

            def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
                return {"mean": self.mean(x)}

        return Net()

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return super().loss(outputs["mean"], targets)

    def metrics(self, outputs: Any, targets: torch.Tensor) -> Any:
        return super().metrics(outputs["mean"], targets)


def test_a_model_that_returns_a_dict_is_declared() -> None:
    clients = Clients(TwoOutputs(), None)
    clients.rehearse()
    assert ONE_OUTPUT in clients.declared.lacks


@pytest.mark.parametrize("attributes", [{"score": "-mae"}, {"score": "-auc", "combine": {"auc": "clients"}}])
def test_a_score_names_a_metric_that_was_returned_or_is_combined(attributes: dict[str, Any]) -> None:
    clients = changed(**attributes)
    clients.rehearse()
    assert clients.declared.score == attributes["score"]
    assert clients.declared.combine == attributes.get("combine", {})


def returning(figures: dict[str, Any]) -> Any:
    return lambda self, outputs, targets: figures


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"score": "f1"}, "score is 'f1', and for two samples metrics.. returned mae; name one of these"),
        ({"score": "f1", "metrics": Task.metrics}, "metrics.. returned no metrics"),
        ({"score": "accuracy"}, "the task's score is 'accuracy', and correct.. finds no accuracy"),
        ({"metrics": returning({"f1": (1, 2)})}, "returned a pair for 'f1': set combine = {'f1': 'ratio'}"),
        ({"metrics": returning({"f1": 1}), "combine": {"f1": "ratio"}}, "must return a pair .* for 'f1', a ratio"),
        ({"metrics": returning({"loss": 1})}, "returned 'loss', which every task has"),
        ({"metrics": returning({"score": 1})}, "'score', which is a column of the history: give it another name"),
        ({"metrics": returning({"a\x1b": 1})}, "returned a metric named"),
        ({"metrics": returning(dict.fromkeys(map(str, range(257)), 1))}, "returned 257 metrics, and 256 are read"),
    ],
)
def test_figures_that_no_round_could_use_are_refused(attributes: dict[str, Any], error: str) -> None:
    with pytest.raises(TaskError, match=error):
        changed(**attributes).rehearse()


def test_names_of_clients_stand_in_errors_and_go_to_the_top_server() -> None:
    clients = changed(client_names={0: "Charité", 3: "Ghent"})
    assert [hosted.name for hosted in clients.hosted] == ["Charité", "", "", "Ghent"]
    empty = data_of("train", lambda part: Split(part.x[:0], part.y[:0]))
    with pytest.raises(TaskError, match=r"client 0 \(Charité\) has no training samples"):
        changed(client_names={0: "Charité"}, data=lambda self, client: empty(client))
