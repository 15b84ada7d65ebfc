from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from fedgsp.errors import TaskError
from fedgsp.seeds import stream
from fedgsp.task import Split
from fedgsp_node.tasks import load_task
from fedgsp_node.tasks.shifts import (
    DEGREES,
    SHIFTS,
    by_shares,
    client_type,
    permutation,
    rotated,
    shifted_rows,
)

EVERY = pytest.mark.parametrize("name", sorted(SHIFTS))


def balanced(samples: int, classes: int) -> np.ndarray:
    return stream(0, "labels").permutation(np.arange(samples) % classes)


def rows_of(
    name: str, labels: np.ndarray, clients: int = 20, classes: int = 10, seed: int = 0, **numbers: float
) -> list[tuple[np.ndarray, np.ndarray]]:
    return shifted_rows(SHIFTS[name], labels, classes, clients, stream(seed, "partition"), **numbers)


@pytest.mark.parametrize(
    ("name", "samples", "classes", "large", "small", "tested"),
    [
        ("label_shift", 70_000, 10, 2100, 14, 350),
        ("feature_shift", 60_000, 10, 2500, 340, 500),
        ("concept_shift", 60_000, 20, 2500, 120, 500),
    ],
)
def test_sample_counts_are_those_of_the_paper(
    name: str, samples: int, classes: int, large: int, small: int, tested: int
) -> None:
    rows = rows_of(name, balanced(samples, classes), classes=classes)
    assert [len(train) for train, _ in rows] == [large] * 10 + [small] * 10
    assert [len(test) for _, test in rows] == [tested] * 20


def test_label_shift_gives_each_type_its_labels() -> None:
    labels = balanced(70_000, 10)
    rows = rows_of("label_shift", labels)
    mixes = np.array(
        [
            [1, 2, 2, 2, 0, 0, 0, 0, 0, 0],
            [0, 2, 2, 2, 1, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 1, 2, 2, 2, 0],
            [0, 0, 0, 0, 0, 0, 2, 2, 2, 1],
        ]
    )
    for client, (train, test) in enumerate(rows):
        mix = mixes[client // 5]
        assert np.bincount(labels[train], minlength=10).tolist() == (mix * (300 if client < 10 else 2)).tolist()
        assert np.bincount(labels[test], minlength=10).tolist() == (mix * 50).tolist()


@EVERY
def test_no_sample_is_dealt_twice(name: str) -> None:
    rows = np.concatenate([part for client in rows_of(name, balanced(20_000, 10)) for part in client])
    assert len(np.unique(rows)) == len(rows)
    assert 0 <= rows.min() <= rows.max() < 20_000


@pytest.mark.parametrize("name", ["concept_shift", "feature_shift"])
def test_without_decay_all_samples_are_used_and_all_clients_alike(name: str) -> None:
    rows = rows_of(name, balanced(6000, 10), decay=0)
    assert [(len(train), len(test)) for train, test in rows] == [(250, 50)] * 20


@EVERY
def test_the_numbers_may_be_others(name: str) -> None:
    sizes = [(len(train), len(test)) for train, test in rows_of(name, balanced(8000, 10), 8, test_share=0.5, decay=1)]
    assert len(set(sizes[:4])) == len(set(sizes[4:])) == 1
    assert sizes[0][0] == sizes[0][1] == sizes[4][1]
    assert abs(sizes[4][0] - sizes[0][0] / math.e) < 10


@EVERY
def test_a_shift_follows_its_seed(name: str) -> None:
    labels = balanced(20_000, 10)
    first, same, other = (rows_of(name, labels, seed=seed)[0][0] for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


@EVERY
@pytest.mark.parametrize("clients", [0, -4, 2, 18])
def test_clients_that_cannot_be_of_four_types_are_refused(name: str, clients: int) -> None:
    with pytest.raises(TaskError, match="set clients to a multiple of 4"):
        rows_of(name, balanced(600, 10), clients)


@EVERY
@pytest.mark.parametrize(
    "numbers",
    [{"test_share": 0.0}, {"test_share": 1.0}, {"decay": -1.0}, {"decay": math.inf}, {"decay": math.nan}],
)
def test_numbers_that_cannot_work_are_refused(name: str, numbers: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match=f"{next(iter(numbers))} is .*; give"):
        rows_of(name, balanced(600, 10), **numbers)


@EVERY
def test_a_client_with_nothing_to_train_on_is_refused(name: str) -> None:
    said = r"client 10 has \d+ samples, and none of them would be for training; lower decay"
    with pytest.raises(TaskError, match=said):
        rows_of(name, balanced(7000, 10), decay=9)


@pytest.mark.parametrize("classes", [9, 20])
def test_label_shift_is_for_ten_classes(classes: int) -> None:
    with pytest.raises(TaskError, match=f"needs 10 classes, not {classes}"):
        rows_of("label_shift", balanced(6000, classes), classes=classes)


def test_types_are_quarters_of_the_clients() -> None:
    assert [client_type(client, 20) for client in range(20)] == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert [client_type(client, 4) for client in range(4)] == [0, 1, 2, 3]


def test_of_20_labels_6_change_places() -> None:
    y = range(20)
    assert permutation(0, 20).tolist() == list(y)
    assert permutation(1, 20).tolist() == [5 - label if label < 6 else label for label in y]
    assert permutation(2, 20).tolist() == [19 - label for label in y]
    assert permutation(3, 20).tolist() == [14 + label if label < 6 else 19 - label for label in y]


@pytest.mark.parametrize(("classes", "agreeing"), [(20, 14), (10, 8)])
def test_types_agree_in_pairs(classes: int, agreeing: int) -> None:
    called = [permutation(kind, classes) for kind in range(4)]
    assert [[int((one == two).sum()) for two in called] for one in called] == [
        [classes, agreeing, 0, 0],
        [agreeing, classes, 0, 0],
        [0, 0, classes, agreeing],
        [0, 0, agreeing, classes],
    ]


@pytest.mark.parametrize("kind", range(4))
def test_no_type_calls_two_labels_the_same(kind: int) -> None:
    for classes in range(2, 63):
        assert sorted(permutation(kind, classes)) == list(range(classes))


@pytest.mark.parametrize("side", [8, 28, 32])
@pytest.mark.parametrize("degrees", [*DEGREES, 0, 45, 90])
def test_images_turn_as_if_padded_with_their_mirror_image(side: int, degrees: float) -> None:
    images = stream(side, "images").random((3, 2, side, side), np.float32)
    # scipy's "reflect" repeats the edge pixel, and turns counter-clockwise on the axes (rows, columns)
    expected = ndimage.rotate(images, degrees, axes=(2, 3), reshape=False, order=1, mode="reflect")
    assert np.allclose(rotated(images, degrees), expected, atol=2e-5)


@pytest.mark.parametrize("side", [8, 28, 32])
def test_padding_by_half_a_side_before_turning_gives_the_same(side: int) -> None:
    images = stream(side, "images").random((2, 1, side, side), np.float32)
    half = slice(side // 2, side // 2 + side)
    padded = np.pad(images, ((0, 0), (0, 0), (side // 2,) * 2, (side // 2,) * 2), mode="symmetric")
    for degrees in DEGREES:
        assert np.allclose(rotated(padded, degrees)[:, :, half, half], rotated(images, degrees), atol=2e-5)


def test_images_turn_counter_clockwise() -> None:
    image = np.zeros((1, 1, 32, 32), np.float32)
    image[0, 0, 14:18, 26:30] = 1  # at the right
    rows, columns = ndimage.center_of_mass(rotated(image, 25)[0, 0])
    turn = math.degrees(math.atan2(15.5 - rows, columns - 15.5))
    assert abs(turn - 25) < 1


def test_types_are_turned_by_50_130_and_180_degrees_from_the_first() -> None:
    apart = [abs((other - DEGREES[0] + 180) % 360 - 180) for other in DEGREES]
    assert apart == [0, 50, 130, 180]


def test_a_shift_changes_what_it_is_named_for_and_nothing_else() -> None:
    before = Split(stream(0, "images").random((10, 1, 8, 8), np.float32), np.arange(10))
    for kind in range(4):
        after = {name: shift.change(kind, before, 10) for name, shift in SHIFTS.items()}
        assert after["label_shift"] is before
        assert np.array_equal(after["feature_shift"].x, rotated(np.asarray(before.x, np.float32), DEGREES[kind]))
        assert np.array_equal(after["feature_shift"].y, before.y)
        assert np.array_equal(after["concept_shift"].x, before.x)
        assert np.array_equal(after["concept_shift"].y, permutation(kind, 10))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.lists(st.floats(0.01, 1), min_size=1, max_size=6),
    st.integers(0, 2**32),
)
def test_shares_that_add_up_to_one_use_every_sample_once(labels: np.ndarray, weights: list[float], seed: int) -> None:
    shares = np.outer(np.array(weights) / sum(weights), np.ones(5))
    parts = by_shares(np.array(labels), shares, stream(seed, "split"))
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    for part, share in zip(parts, shares, strict=True):
        counts = np.bincount(np.array(labels)[part], minlength=5)
        assert (np.abs(counts - share * np.bincount(labels, minlength=5)) < 1.01).all()


def test_a_half_is_rounded_down_in_a_cut() -> None:
    parts = by_shares(np.zeros(5, int), np.array([[0.5], [0.2], [0.3]]), stream(0, "split"))
    assert [len(part) for part in parts] == [2, 1, 2]  # cuts 2.5, 3.5, 5


@pytest.mark.parametrize(
    ("task", "name", "per_label"),
    [("fashion_mnist", "label_shift", 6500), ("cifar10", "feature_shift", 2400), ("mnist", "concept_shift", None)],
)
def test_the_real_images_are_dealt_to_20_clients(real_data: Path, task: str, name: str, per_label: int) -> None:
    dealt = load_task(task, {"data": str(real_data / f"{task}.npz"), "partition": name})
    large, small = dealt.data(0), dealt.data(19)
    assert dealt.num_clients == 20
    assert large.train.x.dtype == small.test.x.dtype == np.float32
    if per_label:
        expected = rows_of(name, balanced(10 * per_label, 10))
        assert [len(large.train), len(small.train)] == [len(expected[client][0]) for client in (0, 19)]
        assert [len(large.test), len(small.test)] == [len(expected[client][1]) for client in (0, 19)]
