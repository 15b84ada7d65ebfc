from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits

from fedgsp.errors import TaskError
from fedgsp.partitions import PARTITIONS
from fedgsp.task import Task
from fedgsp_node.tasks.digits import Digits
from fedgsp_node.tasks.shifts import DEGREES, SHIFTS, permutation, rotated
from tests.support.parts import parts


def test_the_clients_hold_all_1797_digits() -> None:
    held = parts(Digits())
    assert len(held) == 24
    assert sum(len(own.train) + len(own.test) for own in held) == 1797


def test_images_are_scaled_floats_of_one_channel() -> None:
    train = Digits().data(3).train
    assert train.x.dtype == np.float32
    assert train.x.shape[1:] == (1, 8, 8)
    assert train.x.min() == 0
    assert train.x.max() == 1
    assert train.y.dtype == np.int64


@pytest.mark.parametrize("partition", sorted({*PARTITIONS} - {"three_clients"}))
def test_every_partition_gives_every_client_something_to_train_on(partition: str) -> None:
    task = Digits(clients=10, partition=partition)
    assert all(len(own.train) for own in parts(task))
    assert all(task.class_counts(own.train).shape == (10,) for own in parts(task))


def test_clients_differ_in_their_labels_by_default() -> None:
    shares = [Digits().class_counts(own.train).max() / len(own.train) for own in parts(Digits())]
    assert np.mean(shares) > 0.3


def test_the_test_share_is_each_clients_own() -> None:
    for own in parts(Digits(clients=8, test_share=0.5)):
        assert abs(len(own.train) - len(own.test)) <= 1


def test_a_seed_gives_the_same_data_again() -> None:
    first, same, other = (Digits(seed=seed).data(0).train.x for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_the_model_takes_the_data_and_has_10026_parameters() -> None:
    task = Digits()
    model = task.model()
    assert sum(weights.numel() for weights in model.parameters()) == 10026
    assert not list(model.buffers())
    assert model(torch.from_numpy(task.data(0).test.x)).shape == (len(task.data(0).test), 10)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Steps this small gain nothing from a second thread, and wait for it where the cores are taken."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_plain_sgd_learns_the_digits_within_two_passes() -> None:
    task = Digits(clients=4, partition="iid")
    torch.manual_seed(0)
    model = task.model()
    for client in (0, 1, 2, 3) * 2:
        train = task.data(client).train
        for x, y in zip(torch.from_numpy(train.x).split(5), torch.from_numpy(train.y).split(5), strict=True):
            gradients = torch.autograd.grad(task.loss(model(x), y), list(model.parameters()))
            with torch.no_grad():
                for weights, gradient in zip(model.parameters(), gradients, strict=True):
                    weights.sub_(gradient, alpha=0.05)
    tests = [own.test for own in parts(task)]
    right = sum(int((model(torch.from_numpy(test.x)).argmax(1) == torch.from_numpy(test.y)).sum()) for test in tests)
    assert right / sum(map(len, tests)) > 0.93


def test_more_clients_than_digits_are_refused() -> None:
    with pytest.raises(TaskError, match=r"set clients to 1 \.\. 1797"):
        Digits(clients=1798)


@pytest.mark.parametrize("partition", sorted(SHIFTS))
def test_every_shift_is_dealt_to_20_clients_half_of_them_small(partition: str) -> None:
    held = parts(Digits(partition=partition))
    sizes = [len(own.train) for own in held]
    assert len(held) == 20
    assert min(sizes[10:]) >= 6
    assert max(sizes[10:]) < 0.25 * min(sizes[:10])
    assert all(len(own.test) for own in held)


def test_shifts_need_no_decay_to_be_given_but_take_one() -> None:
    weak, strong = (sum(len(own.train) for own in parts(Digits(partition="feature_shift", decay=d))) for d in (0, 1.5))
    assert strong < 0.7 * weak


def whole(task: Task, client: int) -> tuple[np.ndarray, np.ndarray]:
    own = task.data(client)
    return np.concatenate([own.train.x, own.test.x]), np.concatenate([own.train.y, own.test.y])


def test_a_client_sees_the_digits_turned_as_its_type_is() -> None:
    digits = (load_digits().images / 16).astype(np.float32)[:, None]
    task = Digits(clients=8, partition="feature_shift")
    for client in range(8):
        turned = rotated(digits, DEGREES[client // 2]).reshape(-1, 64)
        assert cdist(whole(task, client)[0].reshape(-1, 64), turned).min(axis=1).max() < 1e-5


def test_a_client_calls_the_digits_as_its_type_does() -> None:
    images, labels = load_digits(return_X_y=True)
    true = {image.tobytes(): label for image, label in zip((images / 16).astype(np.float32), labels, strict=True)}
    task = Digits(clients=8, partition="concept_shift")
    for client in range(8):
        x, y = whole(task, client)
        called = permutation(client // 2, 10)
        assert y.tolist() == [called[true[image.tobytes()]] for image in x]


def test_options_of_shifts_and_of_others_are_not_mixed() -> None:
    with pytest.raises(TaskError, match="'iid' has no option decay; it has no options; leave decay out"):
        Digits(partition="iid", decay=2)
    with pytest.raises(
        TaskError, match="'label_shift' has no option alpha; it has test_share, decay; leave alpha out"
    ):
        Digits(partition="label_shift", alpha=1)
