"""The clients of a node: the same bits whatever ran before, and reasons for what does not work."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp import ClientData, Split
from fedgsp.errors import DataError, TaskError
from fedgsp.messages import MOST_SAMPLES, Evaluated, FailureCode, HostedClient, TrainingSettings
from fedgsp.seeds import derive
from fedgsp.tensors.weights import Weights
from fedgsp_node.clients import Clients
from fedgsp_node.kept.personal_state import HEAD
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs
from tests.support.kept_state import keep
from tests.support.reference import Reference, assert_same_bits
from tests.support.toy_task import Toy

#: No client's last batch is of one sample, of which there is no variance to normalise by.
SETTINGS = TrainingSettings("sgd", 2, 7, 0.05, seed=11)


def train(clients: Clients, client: int, round_number: int = 1, settings: TrainingSettings = SETTINGS) -> Weights:
    return clients.train(client, clients.initial_weights(0), settings, round_number, Control()).after


def refused(call: Callable[[], Any]) -> tuple[FailureCode, str]:
    with pytest.raises(OrderError) as error:
        call()
    return error.value.failure.code, error.value.failure.detail


def raising(error: Exception) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


# --- what they compute


def test_training_gives_the_bits_of_an_independent_loop() -> None:
    task = Blobs()
    clients = Clients(task, None)
    oracle = Reference(task, range(4), 1, learning_rate=0.05, batch_size=7, local_epochs=2, seed=11)
    start = clients.initial_weights(0)
    state = {name: array.copy() for name, array in start.arrays.items()}
    for client, round_number in [(0, 1), (3, 1), (0, 2)]:
        trained = clients.train(client, start, SETTINGS, round_number, Control()).after
        assert_same_bits(dict(trained.arrays), oracle.train(state, client, round_number))


def test_what_ran_before_changes_nothing() -> None:
    fresh, busy = Clients(Blobs(), None), Clients(Blobs(), None)
    train(busy, 3, round_number=5)
    busy.evaluate(2, busy.initial_weights(4), Control())
    busy.class_counts(1)
    torch.rand(17)
    assert np.array_equal(train(fresh, 1).buffer, train(busy, 1).buffer)


@pytest.mark.parametrize(
    "changes", [{"client": 2}, {"round_number": 2}, {"settings": dataclasses.replace(SETTINGS, seed=12)}]
)
def test_every_client_round_and_seed_has_draws_of_its_own(changes: dict[str, Any]) -> None:
    class Alike(Blobs):
        def data(self, client: int) -> ClientData:
            return super().data(0)

    clients = Clients(Alike(), None)
    first = train(clients, 1)
    assert not np.array_equal(train(clients, **{"client": 1, **changes}).buffer, first.buffer)


def test_training_leaves_the_start_as_it_was() -> None:
    clients = Clients(Blobs(), None)
    start = clients.initial_weights(0)
    before = start.buffer.copy()
    learned = clients.train(0, start, SETTINGS, 1, Control())
    trained, loss, seconds = learned.after, learned.loss, learned.seconds
    assert np.array_equal(start.buffer, before)
    assert not np.array_equal(trained.buffer, before)
    assert loss > 0
    assert seconds > 0


def test_a_result_is_not_touched_by_what_comes_after() -> None:
    clients = Clients(Blobs(), None)
    trained = train(clients, 0)
    before = trained.buffer.copy()
    train(clients, 1)
    clients.evaluate(2, trained, Control())
    assert np.array_equal(trained.buffer, before)


@pytest.mark.parametrize(("client", "expected"), [(0, 0.81), (1, 1.57)])
def test_the_toy_problem_gives_the_published_values(client: int, expected: float) -> None:
    settings = TrainingSettings("sgd", 2, 10, 0.1, seed=0)
    weights = train(Clients(Toy(), None), client, settings=settings)
    assert weights.arrays["w"][0] == pytest.approx(expected, abs=1e-12)


def test_evaluation_counts_the_test_part() -> None:
    clients = Clients(Toy(), None)
    counted = clients.evaluate(1, clients.initial_weights(0), Control())
    assert counted == Evaluated(correct=0, samples=3, loss_sum=3 * 4.5, judged=3)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    one, other = Clients(Blobs(), [0]), Clients(Blobs(), [3])
    torch.rand(5)
    assert np.array_equal(one.initial_weights(2**62).buffer, other.initial_weights(2**62).buffer)
    assert not np.array_equal(one.initial_weights(1).buffer, other.initial_weights(2).buffer)


def test_histograms_and_sizes_are_those_of_the_data() -> None:
    clients = Clients(Blobs(), [1, 3])
    assert clients.hosted == (HostedClient(1, 11, 5), HostedClient(3, 13, 5))
    assert clients.class_counts(3) == tuple(np.bincount(Blobs().data(3).train.y, minlength=3))
    assert {client.client for client in Clients(Blobs(), None).hosted} == {0, 1, 2, 3}


def test_read_only_data_can_be_trained_on() -> None:
    class ReadOnly(Blobs):
        def data(self, client: int) -> ClientData:
            data = super().data(client)
            for part in (data.train, data.test):
                part.x.flags.writeable = part.y.flags.writeable = False
            return data

    assert np.array_equal(train(Clients(ReadOnly(), None), 1).buffer, train(Clients(Blobs(), None), 1).buffer)


def test_the_training_part_is_evaluated_if_asked() -> None:
    clients = Clients(Blobs(), None)
    weights = clients.initial_weights(0)
    assert clients.evaluate(2, weights, Control(), part="train").samples == 12
    assert clients.evaluate(2, weights, Control()).samples == 5


def test_further_figures_are_those_of_the_task_over_all_outputs_at_once() -> None:
    class Counting(Blobs):
        def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
            return {"rows": len(outputs), "ones": int((targets == 1).sum())}

    evaluated = Clients(Counting(), None).evaluate(
        2, Clients(Blobs(), None).initial_weights(0), Control(), part="train"
    )
    assert evaluated.metrics == {"rows": 12.0, "ones": float((Blobs().data(2).train.y == 1).sum())}
    assert Clients(Blobs(), None).evaluate(2, Clients(Blobs(), None).initial_weights(0), Control()).metrics == {}


# --- heads


def test_the_last_dense_layer_is_the_head_unless_the_task_names_another() -> None:
    class Named(Blobs):
        head = ("0.", "1.")

    def heads(task: Blobs) -> set[str]:
        return {spec.name.partition(".")[0] for spec in Clients(task, None).tensors if spec.head}

    assert heads(Blobs()) == {"4"}
    assert heads(Named()) == {"0", "1"}


def test_a_head_that_travels_is_used_and_one_that_does_not_is_the_clients_own() -> None:
    clients = Clients(Blobs(), None)
    some, other = clients.initial_weights(1), clients.initial_weights(2)
    assert clients.whole(0, some, seed=5) is some
    fresh = clients.whole(0, some.part(clients.shared), seed=5)
    expected = clients.initial_weights(derive(5, "initial-weights"))
    assert np.array_equal(fresh.arrays["4.weight"], expected.arrays["4.weight"])
    assert np.array_equal(fresh.arrays["0.weight"], some.arrays["0.weight"])
    keep(clients.personal, 0, HEAD, clients.head_of(other), 1)
    assert np.array_equal(
        clients.whole(0, some.part(clients.shared), seed=5).arrays["4.weight"], other.arrays["4.weight"]
    )
    assert np.array_equal(clients.whole(1, some.part(clients.shared), seed=5).buffer, fresh.buffer)


def test_training_alone_keeps_no_head() -> None:
    clients = Clients(Blobs(), None)
    start = clients.initial_weights(1).part(clients.shared)
    learned = [clients.train(0, start, SETTINGS, 1, Control()) for _ in range(2)]
    assert np.array_equal(learned[0].after.buffer, learned[1].after.buffer)
    assert learned[0].before.tensors == clients.tensors


# --- orders that cannot be carried out


def test_a_client_that_is_not_hosted_is_named() -> None:
    clients = Clients(Blobs(), [0, 1])
    weights = clients.initial_weights(0)
    for call in (
        lambda: train(clients, 2),
        lambda: clients.evaluate(2, weights, Control()),
        lambda: clients.class_counts(2),
    ):
        assert refused(call) == (FailureCode.UNKNOWN_CLIENT, "client 2 is not hosted here")


def test_an_unknown_algorithm_is_refused_with_those_that_are_known() -> None:
    settings = dataclasses.replace(SETTINGS, algorithm="adam")
    code, detail = refused(lambda: train(Clients(Blobs(), None), 0, settings=settings))
    assert code is FailureCode.BAD_ORDER
    assert "'adam'" in detail
    assert "sgd" in detail


def test_training_that_diverges_names_the_client_and_the_remedy() -> None:
    settings = dataclasses.replace(SETTINGS, learning_rate=1e30, local_epochs=5)
    code, detail = refused(lambda: train(Clients(Blobs(), None), 2, settings=settings))
    assert code is FailureCode.DIVERGED
    assert "client 2" in detail
    assert "--learning-rate" in detail


def test_a_task_that_raises_is_shown_with_file_and_line() -> None:
    clients = Clients(Blobs(on_loss=raising(ValueError("no such label"))), None)
    code, detail = refused(lambda: train(clients, 0))
    assert code is FailureCode.TASK_RAISED
    line = raising.__code__.co_firstlineno + 2
    assert detail == f"ValueError: no such label (test_clients.py:{line})"


def test_an_error_inside_torch_is_shown_where_the_task_called_it() -> None:
    class WrongShapes(Blobs):
        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(outputs[:, :1], targets)

    code, detail = refused(lambda: train(Clients(WrongShapes(), None), 0))
    assert code is FailureCode.TASK_RAISED
    line = WrongShapes.loss.__code__.co_firstlineno + 1
    assert detail.startswith(f"IndexError: Target 1 is out of bounds. (test_clients.py:{line}); number the classes")


def test_tasks_that_raise_elsewhere_are_the_tasks_fault_too() -> None:
    class Raising(Blobs):
        def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> int:
            raise ValueError("in correct")

        def class_counts(self, train: Split) -> Any:
            raise ValueError("in class_counts")

    clients = Clients(Raising(), None)
    weights = clients.initial_weights(0)
    assert refused(lambda: clients.evaluate(0, weights, Control()))[0] is FailureCode.TASK_RAISED
    assert "in class_counts" in refused(lambda: clients.class_counts(0))[1]


def test_what_a_person_can_mend_is_told_without_a_line_of_ours() -> None:
    class Measured(Blobs):
        def data(self, client: int) -> ClientData:
            part = Split(np.zeros((4, 6), np.float32), np.linspace(0, 1, 4))
            return ClientData(part, part)

        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return nn.functional.mse_loss(outputs[:, 0], targets.float())

    detail = "y of shape (4,) and dtype float64 are not classes 0 .. 2; override class_counts()"
    assert refused(lambda: Clients(Measured(), None).class_counts(0)) == (FailureCode.TASK_RAISED, detail)


@pytest.mark.parametrize("count", [-1, 2**64])
def test_counts_that_cannot_be_are_the_tasks_fault(count: int) -> None:
    class Miscounting(Blobs):
        def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> int:
            return count

        def class_counts(self, train: Split) -> Any:
            return [1, count, 2]

    clients = Clients(Miscounting(), None)
    weights = clients.initial_weights(0)
    found = [
        refused(lambda: clients.evaluate(0, weights, Control())),
        refused(lambda: clients.class_counts(0)),
    ]
    remedy = f"return numbers from 0 to {MOST_SAMPLES}"
    assert found == [
        (
            FailureCode.TASK_RAISED,
            f"the task's correct() counts {count} of 5 samples; return the number of correct samples of the batch",
        ),
        (FailureCode.TASK_RAISED, f"class_counts() returned {count} samples for a class; {remedy}"),
    ]


def test_training_can_go_on_after_a_failure() -> None:
    faults = [raising(ValueError("once"))]
    clients = Clients(Blobs(on_loss=lambda: faults.pop()() if faults else None), None)
    refused(lambda: train(clients, 0))
    assert np.array_equal(train(clients, 0).buffer, train(Clients(Blobs(), None), 0).buffer)


def test_stopping_is_not_the_tasks_fault() -> None:
    control = Control(stop=threading.Event())
    control.stop.set()
    clients = Clients(Blobs(), None)
    code, _ = refused(lambda: clients.train(0, clients.initial_weights(0), SETTINGS, 1, control))
    assert code is FailureCode.CANCELLED
    assert control.mark == 1


# --- tasks that cannot be used


class _NoModule(Blobs):
    def model(self) -> nn.Module:
        return "a module"  # type: ignore[return-value]


class _NoData(Blobs):
    def data(self, client: int) -> ClientData:
        return (1, 2)  # type: ignore[return-value]


class _NothingToTrainOn(Blobs):
    def data(self, client: int) -> ClientData:
        data = super().data(client)
        return ClientData(Split(data.train.x[:0], data.train.y[:0]), data.test)


class _RaisingData(Blobs):
    def data(self, client: int) -> ClientData:
        raise OSError("disk on fire")


class _RaisingModel(Blobs):
    def model(self) -> nn.Module:
        raise ImportError("no such layer")


class _WrongInput(Blobs):
    def model(self) -> nn.Module:
        return nn.Linear(7, 3)


@pytest.mark.parametrize(
    ("task", "ids", "message"),
    [
        (Blobs(), [0, 4], "client 4 does not exist: the task has 4 clients; choose --clients from 0-3"),
        (Blobs(), [-1], "client -1 does not exist"),
        (Blobs(clients=0), None, "there is no client to host"),
        (Blobs(), [], "there is no client to host"),
        (_NoModule(), None, r"model\(\) returned str; return a torch.nn.Module"),
        (_NoData(), None, r"data\(0\) returned tuple; return a fedgsp.ClientData"),
        (_NothingToTrainOn(), None, "client 0 has no training samples"),
        (_RaisingData(), [2], r"data\(2\) raised OSError: disk on fire \(test_clients.py:\d+\)"),
        (_RaisingModel(), None, r"model\(\) raised ImportError: no such layer \(test_clients.py:\d+\)"),
        (_WrongInput(), None, r"model\(\) raised RuntimeError: mat1 and mat2 shapes"),
    ],
)
def test_a_task_that_cannot_be_used_says_why(task: Blobs, ids: list[int] | None, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        Clients(task, ids)


def test_an_error_of_the_tasks_own_kind_passes() -> None:
    class Missing(Blobs):
        def data(self, client: int) -> ClientData:
            raise DataError("x.npz is missing", "download it")

    with pytest.raises(DataError, match=r"x\.npz is missing; download it"):
        Clients(Missing(), None)


def test_the_validation_part_is_evaluated_if_asked() -> None:
    class Validated(Blobs):
        def data(self, client: int) -> ClientData:
            data = super().data(client)
            return ClientData(data.train, data.test, data.train)

    clients = Clients(Validated(), None)
    weights = clients.initial_weights(0)
    found = clients.evaluate(2, weights, Control(), part="validation")
    assert found == clients.evaluate(2, weights, Control(), part="train")
    with pytest.raises(OrderError, match="client 2 has no validation part"):
        Clients(Blobs(), None).evaluate(2, weights, Control(), part="validation")


def test_a_node_does_not_list_more_clients_than_it_may_host() -> None:
    task = Blobs(clients=10**15)
    with pytest.raises(TaskError, match="has 1000000000000000 clients, and a node hosts at most 20000; name some"):
        Clients(task, None)
    assert [one.client for one in Clients(task, [7]).hosted] == [7]
