from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp import draw_partition, partition
from fedgsp.errors import TaskError
from fedgsp.partitions import (
    PARTITIONS,
    dirichlet,
    half_normal,
    half_normal_shards,
    hold_out,
    iid,
    partition_indices,
    shards,
    three_clients,
)
from fedgsp.seeds import stream

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
EVERY = pytest.mark.parametrize("name", sorted({*PARTITIONS} - {"three_clients"}))


@EVERY
def test_every_partition_is_disjoint_and_leaves_no_client_empty(name: str) -> None:
    parts = PARTITIONS[name](LABELS, 12, stream(0, "partition"))
    rows = np.concatenate(parts)
    assert len(parts) == 12
    assert all(len(part) for part in parts)
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < len(LABELS)


@EVERY
def test_every_partition_follows_its_seed(name: str) -> None:
    first, same, other = (PARTITIONS[name](LABELS, 12, stream(seed, "partition")) for seed in (3, 3, 4))
    assert all(np.array_equal(one, two) for one, two in zip(first, same, strict=True))
    assert any(not np.array_equal(one, two) for one, two in zip(first, other, strict=True))


@EVERY
@pytest.mark.parametrize("clients", [0, -1, 601])
def test_a_number_of_clients_that_cannot_be_served_is_refused(name: str, clients: int) -> None:
    with pytest.raises(TaskError, match=r"set clients to 1 \.\. 600"):
        PARTITIONS[name](LABELS, clients, stream(0, "partition"))


@pytest.mark.parametrize("name", ["dirichlet", "iid", "shards"])
def test_partitions_without_rounding_use_every_sample(name: str) -> None:
    parts = PARTITIONS[name](LABELS, 7, stream(0, "partition"))
    assert sorted(np.concatenate(parts)) == list(range(600))


def test_iid_sizes_differ_by_one_at_most() -> None:
    sizes = [len(part) for part in iid(LABELS, 7, stream(0, "partition"))]
    assert max(sizes) - min(sizes) == 1


def test_shards_give_each_client_few_labels_and_equal_sizes() -> None:
    parts = shards(LABELS, 10, stream(0, "partition"), shards_per_client=2)
    assert [len(part) for part in parts] == [60] * 10
    assert all(len(np.unique(LABELS[part])) <= 2 for part in parts)


@pytest.mark.parametrize("count", [0, 61])
def test_a_number_of_shards_that_cannot_be_cut_is_refused(count: int) -> None:
    with pytest.raises(TaskError, match=r"set shards_per_client to 1 \.\. 60"):
        shards(LABELS, 10, stream(0, "partition"), shards_per_client=count)


def test_a_smaller_alpha_makes_label_mixes_less_alike() -> None:
    def purity(alpha: float) -> float:
        parts = dirichlet(LABELS, 10, stream(0, "partition"), alpha=alpha)
        return np.mean([np.bincount(LABELS[part]).max() / len(part) for part in parts])

    assert purity(1000) < 0.2 < purity(0.5) < purity(0.05)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.floats(1e-3, 1e3), st.integers(1, 10), st.integers(0, 2**32))
def test_dirichlet_gives_every_client_its_least_size_and_loses_nothing(
    clients: int, alpha: float, min_size: int, seed: int
) -> None:
    parts = dirichlet(LABELS, clients, stream(seed, "partition"), alpha=alpha, min_size=min_size)
    assert min(len(part) for part in parts) >= min_size
    assert sorted(np.concatenate(parts)) == list(range(600))


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf")])
def test_an_alpha_that_is_not_positive_is_refused(alpha: float) -> None:
    with pytest.raises(TaskError, match="give a positive number"):
        dirichlet(LABELS, 10, stream(0, "partition"), alpha=alpha)


def test_a_least_size_that_cannot_be_met_is_refused() -> None:
    with pytest.raises(TaskError, match=r"set min_size to 1 \.\. 60"):
        dirichlet(LABELS, 10, stream(0, "partition"), min_size=61)


def test_half_normal_sizes_follow_the_draws() -> None:
    parts = half_normal(LABELS, 20, stream(0, "partition"))
    draws = np.abs(stream(0, "partition").standard_normal(20))
    assert [len(part) for part in parts] == np.maximum(1, np.floor(600 * draws / draws.sum())).tolist()


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 600), st.integers(0, 2**32))
def test_half_normal_serves_every_client_however_many(clients: int, seed: int) -> None:
    sizes = [len(part) for part in half_normal(LABELS, clients, stream(seed, "partition"))]
    assert len(sizes) == clients
    assert min(sizes) >= 1
    assert sum(sizes) <= 600


def test_half_normal_shards_are_single_label() -> None:
    parts = half_normal_shards(LABELS, 10, stream(0, "partition"), shards=100)
    assert all(len(part) % 6 == 0 for part in parts)
    assert all((np.bincount(LABELS[part]) % 6 == 0).all() for part in parts)
    assert len({len(part) for part in parts}) > 3


def test_about_95_of_100_shards_are_dealt_to_ten_clients() -> None:
    # 95.6 on average as specified: 4,781 samples of CIFAR-10 each, a fifth of which is 956
    labels = np.repeat(np.arange(10), 10)
    dealt = [
        sum(map(len, half_normal_shards(labels, 10, stream(seed, "partition"), shards=100))) for seed in range(400)
    ]
    assert np.mean(dealt) == pytest.approx(95.6, abs=0.3)


@pytest.mark.parametrize("count", [9, 601])
def test_a_number_of_half_normal_shards_that_cannot_be_cut_is_refused(count: int) -> None:
    with pytest.raises(TaskError, match=r"set shards to 10 \.\. 600"):
        half_normal_shards(LABELS, 10, stream(0, "partition"), shards=count)


def test_three_clients_share_half_of_the_classes_20_to_80_and_hold_the_others_alone() -> None:
    small, large, others = three_clients(LABELS, 3, stream(0, "partition"))
    assert np.bincount(LABELS[small], minlength=10).tolist() == [12] * 5 + [0] * 5
    assert np.bincount(LABELS[large], minlength=10).tolist() == [48] * 5 + [0] * 5
    assert np.bincount(LABELS[others], minlength=10).tolist() == [0] * 5 + [60] * 5
    assert sorted(np.concatenate([small, large, others])) == list(range(600))


def test_three_clients_follow_their_seed() -> None:
    first, same, other = (three_clients(LABELS, 3, stream(seed, "partition"))[0] for seed in (3, 3, 4))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("clients", [2, 4])
def test_three_clients_are_three(clients: int) -> None:
    with pytest.raises(TaskError, match=f"cannot have {clients} clients; set clients to 3"):
        three_clients(LABELS, clients, stream(0, "partition"))


@pytest.mark.parametrize("labels", [[], [0] * 50, [0, 0, 1, 1]])
def test_samples_too_few_for_three_clients_are_refused(labels: list[int]) -> None:
    with pytest.raises(TaskError, match="too few for three_clients"):
        three_clients(np.array(labels), 3, stream(0, "partition"))


def test_a_partition_is_found_by_name_and_keeps_its_defaults() -> None:
    named = partition_indices("dirichlet", LABELS, 5, stream(0, "partition"), {"alpha": None, "min_size": 3})
    direct = dirichlet(LABELS, 5, stream(0, "partition"), min_size=3)
    assert all(np.array_equal(one, two) for one, two in zip(named, direct, strict=True))


def test_an_unknown_partition_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TaskError, match=r"no partition 'shard'.*half_normal_shards, iid, label_shift, shards"):
        partition_indices("shard", LABELS, 5, stream(0, "partition"), {}, ["label_shift"])


def test_a_number_the_partition_does_not_take_is_refused() -> None:
    with pytest.raises(TaskError, match="'shards' has no option alpha; it has shards_per_client; leave alpha out"):
        partition_indices("shards", LABELS, 5, stream(0, "partition"), {"alpha": 0.5})


def test_the_held_out_part_keeps_the_label_mix() -> None:
    kept, held = hold_out(LABELS, 0.25, stream(0, "test-part"))
    assert np.bincount(LABELS[held]).tolist() == [15] * 10
    assert np.bincount(LABELS[kept]).tolist() == [45] * 10


def test_every_sample_is_equally_likely_to_be_held_out() -> None:
    labels = np.array([0] * 10 + [1] * 9 + [2])
    times = np.zeros(20)
    for seed in range(2000):
        times[hold_out(labels, 0.3, stream(seed, "test-part"))[1]] += 1
    # a label's only sample too: else the held-out part would be easier than the rest (here 600 expected, deviation 20)
    assert np.all(np.abs(times - 600) < 100)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_holding_out_works_for_any_labels(labels: list[int], share: float, seed: int) -> None:
    kept, held = hold_out(np.array(labels), share, stream(seed, "test-part"))
    assert sorted([*kept, *held]) == list(range(len(labels)))
    assert len(kept) >= 1
    assert len(held) >= (len(labels) > 1)


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan")])
def test_a_share_that_leaves_one_part_empty_is_refused(share: float) -> None:
    with pytest.raises(TaskError, match="between 0 and 1"):
        hold_out(LABELS, share, stream(0, "test-part"))


def test_users_divide_their_own_labels_alike_on_every_node() -> None:
    labels = np.arange(200) % 7
    parts = partition(labels, "dirichlet", clients=20, alpha=0.5, min_size=3, seed=4)
    again = partition(labels.tolist(), "dirichlet", clients=20, alpha=0.5, min_size=3, seed=4)
    assert len(parts) == 20
    assert sorted(np.concatenate(parts)) == list(range(200))
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))
    other = partition(labels, "dirichlet", clients=20, alpha=0.5, min_size=3, seed=5)
    assert any(not np.array_equal(one, two) for one, two in zip(parts, other, strict=True))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"labels": np.zeros((3, 2)), "name": "iid", "clients": 2}, "labels have shape"),
        ({"labels": [0, 1], "name": "dirichlett", "clients": 2}, "there is no partition 'dirichlett'"),
        ({"labels": [0, 1], "name": "iid", "clients": 3}, "2 samples cannot be divided among 3 clients"),
        ({"labels": [0, 1], "name": "iid", "clients": 2, "alpha": 1.0}, "partition 'iid' has no option alpha"),
        ({"labels": [0, 1], "name": "iid", "clients": 1.5}, "clients of partition 'iid' is 1.5"),
        (
            {"labels": [0, 1], "name": "shards", "clients": 1, "shards_per_client": 1.5},
            "shards_per_client of .* is 1.5",
        ),
        ({"labels": [0, 1], "name": "dirichlet", "clients": 1, "alpha": "0.5"}, "alpha of .* is '0.5'"),
        ({"labels": [0, 1], "name": "dirichlet", "clients": 1, "alpha": True}, "alpha of .* is True"),
    ],
)
def test_a_partition_that_cannot_be_is_told(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(TaskError, match=told):
        partition(**arguments)


@pytest.mark.parametrize("classes", [1, 4, 62])
def test_a_partition_is_drawn(tmp_path: Path, classes: int) -> None:
    labels = np.arange(300) % classes
    draw_partition(labels, partition(labels, "shards", clients=9), tmp_path / "partition.png")
    assert (tmp_path / "partition.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(TaskError, match="names a sample that does not exist"):
        draw_partition(labels, [np.array([300])], tmp_path / "partition.png")
