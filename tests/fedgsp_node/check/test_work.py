from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedgsp
from fedgsp.errors import DataError, TaskError
from fedgsp.report import State
from fedgsp.task import ClientData, Split, Task
from fedgsp_node.check.facts import NO_TASK, Data, Facts, Model, Unchecked
from fedgsp_node.check.task import judge_data
from fedgsp_node.check.work import Work, attempt
from tests.support.blobs_task import Blobs
from tests.support.folder_task import Folder, write


def refuse(error: Exception) -> Any:
    raise error


def test_a_good_task_has_a_report_that_can_be_printed() -> None:
    report = fedgsp.check(Blobs())
    assert report.good
    assert [line.name for line in report.lines] == ["task", "data", "model"]
    assert str(report).splitlines()[-1] == "3 checks: 3 good"
    assert {line["state"] for line in report.as_dict()["checks"]} == {"good"}


def test_a_client_without_data_ends_the_check_with_the_words_of_its_line(tmp_path: Path) -> None:
    write(tmp_path, 0, 2)
    with pytest.raises(TaskError, match=r"data of client 1 cannot be used: the task's data\(1\) raised FileNotFound"):
        fedgsp.check(Folder(tmp_path))
    assert fedgsp.check(Folder(tmp_path), clients=[0, 2]).good
    assert fedgsp.check(Folder(tmp_path), clients=np.array([0, 2])).good


def test_a_client_that_the_task_does_not_have_is_a_mistake() -> None:
    with pytest.raises(TaskError, match="client 99 does not exist"):
        fedgsp.check(Blobs(), clients=[99])


@pytest.mark.parametrize(
    ("attributes", "what"),
    [
        ({"client_names": ("a", "a")}, "client_names"),
        ({"client_names": ("a", 3)}, "client_names"),
        ({"client_names": ("a",)}, "client_names"),
        ({"combine": {"mae": "foo"}}, "combine"),
        ({"combine": [1]}, "combine"),
        ({"score": 3}, "score"),
    ],
)
def test_what_a_node_refuses_when_it_loads_a_task_is_refused(attributes: dict[str, Any], what: str) -> None:
    task = Blobs()
    vars(task).update(attributes)
    with pytest.raises(TaskError, match=f"task Blobs: {what} "):
        fedgsp.check(task)


@pytest.mark.parametrize(
    ("words", "what", "remedy"),
    [
        ((Blobs,), "Blobs is a class", "fedgsp.check(Blobs())"),
        ((None,), "None is not a task", "give an instance"),
        ((Blobs(), ["a"]), "clients is ('a',)", "whole numbers"),
        ((Blobs(), 0), "clients is 0", "whole numbers"),
        ((Blobs(), [True]), "clients is (True,)", "whole numbers"),
        ((Blobs(), [0, 0]), "client 0 is named twice", "name each client once"),
    ],
)
def test_what_is_no_task_and_no_client_is_refused(words: tuple[Any, ...], what: str, remedy: str) -> None:
    with pytest.raises(TaskError) as caught:
        fedgsp.check(*words)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_a_model_that_does_not_work_on_two_samples_is_a_mistake() -> None:
    class Wrong(Blobs):
        def correct(self, outputs: Any, targets: Any) -> int:
            return 7

    with pytest.raises(TaskError, match=r"correct\(\) counts 7 of 2 samples"):
        fedgsp.check(Wrong())


@pytest.mark.parametrize("change", [lambda x: np.pad(x, ((0, 0), (0, 1))), lambda x: (x * 9).astype(np.uint8)])
def test_a_client_whose_samples_the_model_does_not_take_is_named(change: Any) -> None:
    class Odd(Blobs):
        def data(self, client: int) -> ClientData:
            found = super().data(client)
            x = found.train.x if client != 2 else change(found.train.x)
            return ClientData(Split(x, found.train.y), found.test)

    with pytest.raises(TaskError, match=r"client 2 has samples of other shapes or dtypes than client 0: .*model\(\)"):
        fedgsp.check(Odd())
    assert fedgsp.check(Odd(), clients=[0, 1, 3]).good


def test_samples_of_other_shapes_are_good_if_the_model_takes_them() -> None:
    class Lengths(Blobs):
        def model(self) -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.AdaptiveAvgPool1d(6), torch.nn.Linear(6, 3))

        def data(self, client: int) -> ClientData:
            found = super().data(client)
            return ClientData(Split(np.pad(found.train.x, ((0, 0), (0, client))), found.train.y), found.test)

    assert fedgsp.check(Lengths()).good


def test_a_package_that_the_task_lacks_is_to_be_installed() -> None:
    error = attempt(lambda: refuse(ModuleNotFoundError("No module named 'clinics_db'")))
    assert isinstance(error, TaskError)
    assert error.what.startswith("the task raised ModuleNotFoundError: No module named 'clinics_db'")
    assert "install the package that this names" in error.remedy


def test_class_counts_that_fail_are_told_with_the_error() -> None:
    class Wrong(Blobs):
        def class_counts(self, train: Any) -> Any:
            return train.no_such_thing

    report = fedgsp.check(Wrong())
    assert not report.good
    (line,) = (line for line in report.lines if line.state is State.WARNING)
    assert "has no class counts: AttributeError: 'Split' object" in line.words
    assert "correct class_counts()" in line.remedy


def test_a_task_without_classes_needs_no_class_counts() -> None:
    class Measured(Blobs):
        num_classes = 0

        def loss(self, outputs: Any, targets: Any) -> Any:
            return (outputs[:, 0] - targets).square().mean()

    assert fedgsp.check(Measured()).good


@pytest.mark.parametrize("error", [DataError("the file is cut", "fetch it again"), ValueError("odd"), SystemExit(3)])
def test_errors_of_single_clients_do_not_hide_each_other(error: Exception) -> None:
    class Some(Blobs):
        def data(self, client: int) -> ClientData:
            return refuse(error) if client % 2 else super().data(client)

    work = Work()
    work.look(Some, None)
    _, data, model = work.facts()
    assert isinstance(data, Data)
    assert set(data.failed) == {client for client in range(Some().num_clients) if client % 2}
    assert isinstance(model, Model)
    words = judge_data(data, None).words  # type: ignore[arg-type]
    assert words.startswith("data of client 1, 3")
    assert words.count("the file is cut") == isinstance(error, DataError)  # the same words once


def test_the_same_error_of_several_clients_is_told_once_though_each_names_its_client() -> None:
    failed = {
        0: TaskError("client 0's x holds NaN or infinite values", "impute them"),
        1: TaskError("client 1 (Charité)'s x holds NaN or infinite values", "impute them"),
        2: DataError("data/2.csv is cut", "fetch it again"),
        3: DataError("data/3.csv is cut", "fetch it again"),
    }
    words = judge_data(Data(4, {}, failed, 1.0), None).words  # type: ignore[arg-type]
    told = "client 0's x holds NaN or infinite values; data/2.csv is cut; 1 more clients"
    assert words.startswith(f"data of client 0, 1, 2 cannot be used: {told} (0 of 4 clients")


def test_without_any_usable_client_the_model_is_not_tried() -> None:
    class Empty(Blobs):
        def data(self, client: int) -> ClientData:
            return ClientData(Split(np.zeros((0, 2)), np.zeros(0)), Split(np.zeros((0, 2)), np.zeros(0)))

    work = Work()
    work.look(Empty, None)
    assert isinstance(work.facts()[2], Unchecked)


def test_a_task_that_cannot_be_built_leaves_the_rest_unchecked() -> None:
    work = Work()
    work.look(lambda: refuse(TaskError("no module", "install it")), None)
    task, data, model = work.facts()
    assert isinstance(task, TaskError)
    assert data is model is NO_TASK


def test_data_that_are_not_read_in_time_are_told_with_those_that_are() -> None:
    reading, gate = threading.Event(), threading.Event()

    class Slow(Blobs):
        def data(self, client: int) -> ClientData:
            if client:
                reading.set()
                gate.wait()
            return super().data(client)

    work = Work()
    thread = threading.Thread(target=work.look, args=(Slow, None))
    thread.start()
    try:
        reading.wait()
        work.stop()
        _, data, model = work.facts(5.0)
    finally:
        gate.set()
        thread.join()
    assert isinstance(data, Data)
    facts = Facts(address="", now=0.0, protocol=1, own_versions={}, data_timeout=5.0)
    finding = judge_data(data, facts)
    assert (finding.state, "not all data were read within 5 s: 1 of" in finding.words) == (State.BAD, True)
    assert "--data-timeout" in finding.remedy
    assert isinstance(model, TaskError)
    assert "not ready after 5 s" in model.what
    assert work.clients is None  # nobody waits for it any more


def test_a_task_that_does_not_load_in_time_is_told() -> None:
    task, *_ = Work().facts(60.0)
    assert isinstance(task, TaskError)
    assert "60 s" in task.what


def test_importing_the_package_imports_no_torch_for_the_check() -> None:
    assert callable(fedgsp.check)
    assert issubclass(Blobs, Task)
