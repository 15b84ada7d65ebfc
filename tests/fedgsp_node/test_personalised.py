"""Personalised evaluation: of what the training algorithm makes of a model for one client, not of the model itself."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp import ClientData, Split
from fedgsp.messages import Additions, Evaluate, Evaluated, FailureCode, Order, Start, Train, TrainingSettings
from fedgsp.seeds import stream
from fedgsp.tensors.weights import Weights
from fedgsp.trainings import TRAININGS
from fedgsp_node.clients import Clients
from fedgsp_node.kept.personal_state import HEAD, PERSONAL_MODEL
from fedgsp_node.model.torch_weights import bind
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs
from tests.support.kept_state import keep
from tests.support.toy_task import SAMPLES, TARGETS, Toy
from tests.support.trainings import ADAPTING, ALGORITHMS, HEADED, KEEPING
from tests.support.working import HERE, Node, node, why_not

ROUND = 4
PLAIN = [name for name in ALGORITHMS if name not in (*ADAPTING, *KEEPING, *HEADED)]


def settings(algorithm: str, batch_size: int = 10, learning_rate: float = 0.1, **options: str) -> TrainingSettings:
    return TrainingSettings(algorithm, 1, batch_size, learning_rate, seed=3, options=options)


def evaluated(
    clients: Clients, weights: Weights, how: TrainingSettings | None, client: int = 1, round_number: int | None = ROUND
) -> Evaluated:
    return clients.evaluate(client, weights, Control(), how, personalised_in=round_number)


def toy_loss(client: int, w: float) -> float:
    """Loss sum of the toy problem."""
    return SAMPLES[client] * 0.5 * (w - TARGETS[client]) ** 2


def descended(client: int, steps: int, w: float = 1.0) -> float:
    for _ in range(steps):
        w -= 0.1 * (w - TARGETS[client])
    return w


# --- the toy problem


def test_every_algorithm_is_of_one_kind() -> None:
    assert sorted(PLAIN + ADAPTING + KEEPING + HEADED) == sorted(TRAININGS)
    assert (ADAPTING, KEEPING, HEADED) == (["finetune", "per-fedavg"], ["pfedme", "ditto"], ["own-head"])


@pytest.mark.parametrize("client", [0, 1])
@pytest.mark.parametrize(
    ("how", "steps"),
    [
        (settings("finetune"), 2),
        (settings("finetune", steps="5"), 5),
        (settings("per-fedavg"), 1),
        (settings("per-fedavg", steps="3"), 3),
        (settings("sgd"), 0),
        (settings("fedprox"), 0),
    ],
    ids=lambda value: value.algorithm if isinstance(value, TrainingSettings) else str(value),
)
def test_adapting_algorithms_take_their_steps_first(how: TrainingSettings, steps: int, client: int) -> None:
    clients = Clients(Toy(), None)
    found = evaluated(clients, clients.initial_weights(0), how, client)
    assert found.loss_sum == pytest.approx(toy_loss(client, descended(client, steps)), abs=1e-12)
    assert found.samples == SAMPLES[client]


@pytest.mark.parametrize(("client", "theta"), [(0, 0.66384), (1, 2.00848)])
def test_pfedme_is_evaluated_with_its_personal_model(client: int, theta: float) -> None:
    clients = Clients(Toy(), None)
    start = clients.initial_weights(0)
    learned = clients.train(client, start, settings("pfedme"), 1, Control())
    keep(clients.personal, client, PERSONAL_MODEL, learned.keeps[PERSONAL_MODEL], 1)
    found = evaluated(clients, learned.after, settings("pfedme"), client)
    assert found.loss_sum == pytest.approx(toy_loss(client, theta), abs=1e-9)


@pytest.mark.parametrize(("client", "expected"), [(0, 1.7), (1, 2.1)])
def test_ditto_is_evaluated_with_its_personal_model(client: int, expected: float) -> None:
    clients = Clients(Toy(), None)
    start = clients.initial_weights(0)
    keep(clients.personal, client, PERSONAL_MODEL, {"w": np.array([2.0])}, 0)
    learned = clients.train(client, start, settings("ditto"), 1, Control())
    keep(clients.personal, client, PERSONAL_MODEL, learned.keeps[PERSONAL_MODEL], 1)
    found = evaluated(clients, start, settings("ditto"), client)
    assert found.loss_sum == pytest.approx(toy_loss(client, expected), abs=1e-12)


def test_own_head_is_evaluated_with_the_head_trained_last_on_the_body_that_came() -> None:
    clients, how = Clients(Blobs(), None), settings("own-head", batch_size=4)
    start, other = clients.initial_weights(0), clients.initial_weights(1)
    as_it_came = evaluated(clients, start, settings("sgd"))
    assert evaluated(clients, start, how) == dataclasses.replace(as_it_came, afresh=True)
    learned = clients.train(1, start, how, 1, Control())
    assert learned.keeps_head
    assert learned.after.tensors == clients.tensors  # the head is shared too
    keep(clients.personal, 1, HEAD, clients.head_of(learned.after), 1)
    head = {spec.name for spec in clients.tensors if spec.head}
    mixed = {name: (learned.after if name in head else other).arrays[name] for name in other.arrays}
    expected = evaluated(clients, Weights.of(mixed, clients.tensors), settings("sgd"))
    assert evaluated(clients, other, how) == expected != evaluated(clients, other, settings("sgd"))


def test_own_head_begins_with_the_head_that_came() -> None:
    clients, how = Clients(Blobs(), None), settings("own-head", batch_size=4)
    start, other = clients.initial_weights(0), clients.initial_weights(1)
    keep(clients.personal, 1, HEAD, clients.head_of(other), 0)
    plain = clients.train(1, start, settings("sgd", batch_size=4), 1, Control()).after
    assert np.array_equal(clients.train(1, start, how, 1, Control()).after.buffer, plain.buffer)


@pytest.mark.parametrize("algorithm", KEEPING)
def test_a_client_that_has_not_trained_yet_uses_the_model_that_came(algorithm: str) -> None:
    clients = Clients(Toy(), None)
    keep(clients.personal, 0, PERSONAL_MODEL, {"w": np.array([9.0])}, 1)
    found = evaluated(clients, clients.initial_weights(0), settings(algorithm))
    assert found.loss_sum == pytest.approx(toy_loss(1, 1.0))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_without_being_asked_it_is_the_model_itself(algorithm: str) -> None:
    clients = Clients(Toy(), None)
    keep(clients.personal, 1, PERSONAL_MODEL, {"w": np.array([9.0])}, 1)
    start = clients.initial_weights(0)
    for how, round_number in [(settings(algorithm), None), (None, ROUND), (None, None)]:
        assert evaluated(clients, start, how, round_number=round_number).loss_sum == pytest.approx(toy_loss(1, 1.0))


# --- a model with dropout and batch normalisation


class Plain(Blobs):
    """The blobs without dropout."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("algorithm", ADAPTING)
def test_adaptation_is_plain_sgd_on_the_training_part_and_counts_are_of_the_test_part(algorithm: str) -> None:
    clients, how = Clients(Plain(), None), settings(algorithm, batch_size=4, learning_rate=0.3, steps="3")
    weights = clients.initial_weights(0)
    data = Plain().data(2)
    x, y = torch.from_numpy(data.train.x), torch.from_numpy(data.train.y)
    model = Plain().model()
    bind(model, weights.copy())

    order = stream(how.seed, "adaptation-order", ROUND, 2)
    model.train()
    permutation = order.permutation(len(x))
    for begin in (0, 4, 8):
        rows = permutation[begin : begin + 4]
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(0.3 * gradient)
    model.eval()
    with torch.no_grad():
        outputs = model(torch.from_numpy(data.test.x))
    targets = torch.from_numpy(data.test.y)

    found = evaluated(clients, weights, how, client=2)
    assert found.samples == 5
    assert found.loss_sum == pytest.approx(float(nn.functional.cross_entropy(outputs, targets)) * 5, rel=1e-5)
    assert found.correct == int((outputs.argmax(1) == targets).sum())


def train(clients: Clients, how: TrainingSettings, client: int = 1) -> Weights:
    learned = clients.train(client, clients.initial_weights(0), how, 1, Control())
    for purpose, arrays in learned.keeps.items():
        keep(clients.personal, client, purpose, arrays, 1)
    return learned.after


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_evaluating_changes_no_model_and_says_the_same_again(algorithm: str) -> None:
    task, how = Blobs(), settings(algorithm, batch_size=4)
    task.extractor = "2"
    clients = Clients(task, None)
    clients.extend(Additions(algorithm))
    weights = train(clients, how)
    before, kept = weights.buffer.copy(), clients.personal.get(1, PERSONAL_MODEL)
    first = evaluated(clients, weights, how)
    torch.rand(5)
    clients.evaluate(2, weights, Control())
    assert evaluated(clients, weights, how) == first
    assert np.array_equal(weights.buffer, before)
    after = clients.personal.get(1, PERSONAL_MODEL)
    assert (after is None) == (kept is None) == (algorithm not in KEEPING)
    if kept is not None and after is not None:
        assert all(np.array_equal(array, after[1][name]) for name, array in kept[1].items())


@pytest.mark.parametrize("algorithm", ADAPTING)
def test_every_round_client_and_seed_adapts_by_draws_of_its_own(algorithm: str) -> None:
    clients, how = Clients(Blobs(), None), settings(algorithm, batch_size=4)
    weights = clients.initial_weights(0)
    first = evaluated(clients, weights, how)
    assert evaluated(clients, weights, how, round_number=5).loss_sum != first.loss_sum
    assert evaluated(clients, weights, dataclasses.replace(how, seed=4)).loss_sum != first.loss_sum


@pytest.mark.parametrize("algorithm", ADAPTING)
def test_adapting_does_not_change_what_a_client_trains_next(algorithm: str) -> None:
    how, adapted, fresh = settings(algorithm, batch_size=4), Clients(Blobs(), None), Clients(Blobs(), None)
    evaluated(adapted, adapted.initial_weights(0), how)
    assert np.array_equal(train(adapted, how).buffer, train(fresh, how).buffer)


@pytest.mark.parametrize("algorithm", ADAPTING)
def test_the_only_sample_of_a_client_is_no_batch_for_batch_norm(algorithm: str) -> None:
    class Lonely(Blobs):
        def data(self, client: int) -> ClientData:
            data = super().data(client)
            return ClientData(Split(data.train.x[:1], data.train.y[:1]), data.test)

    clients = Clients(Lonely(), None)
    weights = clients.initial_weights(0)
    own = evaluated(clients, weights, settings(algorithm, batch_size=4))
    assert own.loss_sum == clients.evaluate(1, weights, Control()).loss_sum


def test_an_adaptation_can_be_stopped() -> None:
    clients, control = Clients(Blobs(), None), Control()
    control.stop.set()
    with pytest.raises(OrderError) as caught:
        clients.evaluate(1, clients.initial_weights(0), control, settings("finetune"), personalised_in=1)
    assert caught.value.failure.code is FailureCode.CANCELLED


@pytest.mark.parametrize(
    ("how", "detail"),
    [
        (settings("adam"), "there is no training 'adam'"),
        (settings("finetune", steps="0"), "option steps is '0'"),
        (settings("sgd", mu="1"), "has no option 'mu'"),
    ],
)
def test_settings_that_no_node_can_train_with_are_refused(how: TrainingSettings, detail: str) -> None:
    clients = Clients(Toy(), None)
    with pytest.raises(OrderError) as caught:
        evaluated(clients, clients.initial_weights(0), how)
    assert caught.value.failure.code is FailureCode.BAD_ORDER
    assert detail in caught.value.failure.detail


# --- orders


async def ask(n: Node, how: TrainingSettings | None, personalised: bool, client: int = 1) -> Evaluated:
    result = await n.do(Evaluate(Start("start", HERE), settings=how, personalised=personalised), client)
    assert isinstance(result, Evaluated)
    return result


@pytest.mark.parametrize("algorithm", [*ADAPTING, *KEEPING, *HEADED])
async def test_an_order_says_whether_to_personalise(algorithm: str) -> None:
    async with node() as n:
        how = settings(algorithm, batch_size=4, learning_rate=0.05)
        await n.do(Train(Start("start", HERE), "end", how), 1)
        start = await n.store.get("start")
        model = n.clients.evaluate(1, start, Control())
        plain, own = await ask(n, how, False), await ask(n, how, True)
        assert plain.loss_sum == model.loss_sum != own.loss_sum
        assert own.loss_sum == evaluated(n.clients, start, how).loss_sum
        assert (await ask(n, None, True)).loss_sum == model.loss_sum


async def test_without_a_key_there_is_no_round_to_adapt_in() -> None:
    async with node() as n:
        how = settings("finetune", batch_size=4)
        order = Order(None, 1, Evaluate(Start("start", HERE), settings=how, personalised=True))
        result = await n.worker.carry_out(order, n._upload)
        assert isinstance(result, Evaluated)
        assert result.loss_sum == n.clients.evaluate(1, await n.store.get("start"), Control()).loss_sum


async def test_a_trial_keeps_no_personal_model() -> None:
    async with node() as n:
        await n.do(Train(Start("start", HERE), "end", settings("ditto", batch_size=4), trial=True), 1)
        assert n.clients.personal.get(1, PERSONAL_MODEL) is None
        await n.do(Train(Start("start", HERE), "end 2", settings("ditto", batch_size=4)), 1)
        assert n.clients.personal.get(1, PERSONAL_MODEL) is not None


@pytest.mark.parametrize("algorithm", KEEPING)
async def test_personal_models_of_a_run_outlive_its_node_if_there_is_a_directory(
    algorithm: str, tmp_path: Path
) -> None:
    how = settings(algorithm, batch_size=4, learning_rate=0.05)
    async with node(state_dir=tmp_path) as n:
        await n.do(Train(Start("start", HERE), "end", how), 1)
        before = await ask(n, how, True)
    async with node(state_dir=tmp_path) as again:
        assert (await ask(again, how, True)).loss_sum == before.loss_sum
        again.worker.open("another run")
        assert (await ask(again, how, True)).loss_sum == (await ask(again, how, False)).loss_sum


async def test_comparing_alone_evaluates_nothing() -> None:
    """Nor does it wait for the training slot."""
    async with node() as n:
        n.store.put("other", n.clients.initial_weights(1))
        start, other = await n.store.get("start"), await n.store.get("other")
        order = Evaluate(Start("start", HERE), True, "other", settings("finetune"), only_compare=True)
        async with asyncio.timeout(10):
            result = await n.do(order, 1)
        expected = sum(
            float(np.sum((array.astype(np.float64) - other.arrays[name].astype(np.float64)) ** 2))
            for name, array in start.arrays.items()
            if array.dtype.kind == "f"
        )
        assert (result.correct, result.samples, result.loss_sum) == (0, 0, 0.0)
        assert result.squared_distance == pytest.approx(expected)
        assert n.slot.mark == 0
        lost = dataclasses.replace(order, compared_with="never kept")
        assert (await why_not(n.do(lost, 1))).code is FailureCode.NO_SUCH_MODEL
