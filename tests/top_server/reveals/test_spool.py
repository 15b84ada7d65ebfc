"""The updates' inner products: right, bounded, and the same bits however the updates came and where they are kept."""

from __future__ import annotations

import errno
import math
import os
import re
import resource
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.errors import RunError, is_full
from fedgsp.messages import TensorSpec
from fedgsp.processes import lifecycle
from fedgsp.tensors.weights import Weights
from fedgsp_node.updates import reveal
from top_server.grouping.greedy_merging import partition
from top_server.reveals.spool import SketchSpool, UpdateSpool

IN_MEMORY = 1 << 30
IN_A_FILE = 0


def vectors(clients: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((clients, size)).astype(np.float32)


def filled(directory: Path, rows: np.ndarray, memory_bytes: int) -> UpdateSpool:
    spool = UpdateSpool(directory, memory_bytes)
    for client, row in enumerate(rows):
        spool.put(client, row)
    return spool


def read(spool: UpdateSpool, clients: Sequence[int], columns: slice = slice(None)) -> np.ndarray:
    blocks = [block.copy() for block in spool.blocks(clients, columns)]
    return np.concatenate([np.empty((len(clients), 0)), *blocks], axis=1)


@pytest.fixture(params=[IN_MEMORY, IN_A_FILE], ids=["memory", "file"])
def spool(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[UpdateSpool]:
    with closing(UpdateSpool(tmp_path, request.param)) as spool:
        yield spool


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(0, 10_000), st.integers(0, 200_000), st.integers(0, 2**32))
def test_the_gram_matrix_is_every_inner_product(
    tmp_path_factory: pytest.TempPathFactory, clients: int, size: int, memory_bytes: int, seed: int
) -> None:
    rows = vectors(clients, size, seed)
    with closing(filled(tmp_path_factory.mktemp("spool"), rows, memory_bytes)) as spool:
        gram = spool.gram(range(clients))
        assert np.allclose(gram, rows.astype(np.float64) @ rows.astype(np.float64).T, rtol=1e-12, atol=1e-9)
        assert np.array_equal(gram, gram.T)


def test_more_clients_than_are_multiplied_at_a_time_give_a_symmetric_product(tmp_path: Path) -> None:
    rows = vectors(2500, 5)
    gram = filled(tmp_path, rows, IN_MEMORY).gram(range(2500))
    assert np.allclose(gram, rows.astype(np.float64) @ rows.astype(np.float64).T, rtol=1e-12, atol=1e-12)
    assert np.array_equal(gram, gram.T)


def test_the_bits_depend_neither_on_the_order_of_arrival_nor_on_where_the_updates_are_kept(tmp_path: Path) -> None:
    rows = vectors(6, 9_001)
    grams = []
    for order in ([0, 1, 2, 3, 4, 5], [3, 5, 0, 2, 4, 1]):
        for memory_bytes in (IN_MEMORY, IN_A_FILE, rows[0].nbytes * 3, 2048 * 4 * 6 * 2):
            with closing(UpdateSpool(tmp_path, memory_bytes)) as spool:
                spool.put(5, rows[0])
                for client in order:
                    spool.put(client, rows[client])
                grams.append(spool.gram(range(6)).tobytes())
    assert len(set(grams)) == 1


def test_the_order_of_the_clients_asked_for_is_kept(spool: UpdateSpool) -> None:
    for client, row in enumerate(np.eye(3, dtype=np.float32) * [[1], [2], [3]]):
        spool.put(client, row.astype(np.float32))
    assert np.diag(spool.gram([2, 0])).tolist() == [9, 1]


def test_a_client_without_an_update_has_nan(spool: UpdateSpool) -> None:
    spool.put(4, np.array([3, 4], np.float32))
    gram = spool.gram([1, 4])
    assert np.isnan(gram).tolist() == [[True, True], [True, False]]
    assert gram[1, 1] == 25
    assert np.isnan(spool.gram([0, 1])).all()
    assert spool.gram([]).shape == (0, 0)
    with pytest.raises(ValueError, match="client 1 has no update"):
        next(spool.blocks([4, 1]))


def test_columns_may_be_chosen(spool: UpdateSpool) -> None:
    rows = vectors(3, 7_000)
    for client, row in enumerate(rows):
        spool.put(client, row)
    for part in (slice(10, 5_000), slice(6_999, None), slice(50, 50), slice(-100, 90_000)):
        assert np.array_equal(read(spool, [2, 0], part), rows[[2, 0], part])
    with pytest.raises(ValueError, match="one after the other"):
        read(spool, [0], slice(0, 10, 2))


def test_an_update_replaces_the_one_before_and_newcomers_may_come_and_go(spool: UpdateSpool) -> None:
    rows = vectors(8, 300)
    expected: dict[int, np.ndarray] = {}
    rng = np.random.default_rng(1)
    for _ in range(60):
        client, row = int(rng.integers(5)), rows[rng.integers(8)]
        if rng.random() < 0.35:
            spool.forget(client)
            expected.pop(client, None)
        else:
            spool.put(client, row)
            expected[client] = row
        assert spool.clients == tuple(sorted(expected))
        if expected:
            assert np.array_equal(read(spool, spool.clients), [expected[client] for client in spool.clients])


def test_when_all_are_gone_updates_of_another_length_may_come(spool: UpdateSpool) -> None:
    for size in (5, 3, 9):
        for client in (0, 1):
            spool.put(client, np.full(size, 1 + client, np.float32))
        assert spool.gram([0, 1]).tolist() == [[size, 2 * size], [2 * size, 4 * size]]
        for client in (0, 1):
            spool.forget(client)


def test_a_spool_keeps_a_copy(spool: UpdateSpool) -> None:
    vector = np.ones(2, np.float32)
    spool.put(0, vector)
    vector[...] = 7
    assert spool.gram([0]) == [[2]]


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (np.ones(4, np.float32), "client 7 has 4 numbers, the others' 3"),
        (np.ones(3), "client 7 is float64"),
        (np.ones((1, 3), np.float32), "not flat"),
        (np.array([0, np.nan, 1], np.float32), "client 7 holds NaN"),
        (np.array([0, -np.inf, 1], np.float32), "client 7 holds NaN or infinite"),
    ],
)
def test_a_bad_update_is_refused_and_changes_nothing(spool: UpdateSpool, vector: np.ndarray, message: str) -> None:
    spool.put(1, np.ones(3, np.float32))
    spool.put(7, np.ones(3, np.float32))
    with pytest.raises(ValueError, match=message):
        spool.put(7, vector)
    assert spool.gram([1, 7]).tolist() == [[3, 3], [3, 3]]


def test_nothing_is_seen_on_disk_and_nothing_is_left_there(tmp_path: Path) -> None:
    def crash() -> None:
        with closing(UpdateSpool(tmp_path, IN_A_FILE)) as spool:
            spool.put(0, vectors(1, 5_000)[0])
            assert list(tmp_path.iterdir()) == []
            raise KeyError

    with pytest.raises(KeyError):
        crash()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("usual_umask")
def test_updates_on_disk_can_be_read_by_nobody_else(tmp_path: Path) -> None:
    with closing(filled(tmp_path, vectors(2, 10), IN_A_FILE)) as spool:
        assert spool._file is not None
        assert os.fstat(spool._file.fileno()).st_mode & 0o777 == 0o600


def test_a_directory_that_cannot_be_written_ends_the_run_with_a_reason(tmp_path: Path) -> None:
    spool = UpdateSpool(tmp_path / "absent", 100)
    spool.put(0, np.ones(20, np.float32))
    with pytest.raises(RunError, match=r"cannot be spooled in .*absent: No such file"):
        spool.put(1, np.ones(20, np.float32))
    assert spool.gram([0, 1])[0, 0] == 20


@pytest.mark.parametrize(
    ("memory_bytes", "room"), [(0, 100_000), (80_000, 100_000), (80_000, 60_000)], ids=["next", "first", "move"]
)
def test_a_disk_that_takes_no_more_ends_the_run_with_a_reason(tmp_path: Path, memory_bytes: int, room: int) -> None:
    rows = vectors(3, 10_000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(UpdateSpool(tmp_path, memory_bytes)) as spool:
        spool.put(0, rows[0])
        spool.put(1, rows[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        try:
            with pytest.raises(RunError, match="make room on that disk"):
                spool.put(2, rows[2])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert spool.clients == (0, 1)
        assert np.array_equal(read(spool, [0, 1]), rows[:2])
        spool.put(2, rows[2])
        assert np.array_equal(read(spool, [2, 1, 0]), rows[::-1])


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, pwrite = vectors(1, 100), os.pwrite
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return True

    def full_at_first(*given: Any) -> int:
        if not waits:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(*given)

    monkeypatch.setattr(os, "pwrite", full_at_first)
    monkeypatch.setattr(lifecycle, "sleep", wait)
    with closing(UpdateSpool(tmp_path, IN_A_FILE)) as spool:
        spool.put(0, rows[0])
        assert np.array_equal(read(spool, [0]), rows)
    assert len(waits) == 1


def test_a_saved_update_is_one_of_numpy_and_a_full_disk_says_so(tmp_path: Path) -> None:
    rows = vectors(2, 100)
    with closing(UpdateSpool(tmp_path)) as spool:
        for client, row in enumerate(rows):
            spool.put(client, row)
        spool.save(tmp_path)
        assert np.array_equal(np.load(tmp_path / "update-1.npy"), rows[1])
        (tmp_path / "update-1.npy").unlink()
        (tmp_path / "update-1.npy").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left") as caught:
            spool.save(tmp_path)
        assert is_full(caught.value)


def test_a_spool_can_be_closed_twice(tmp_path: Path) -> None:
    spool = filled(tmp_path, vectors(2, 10), IN_A_FILE)
    spool.close()
    spool.close()
    assert spool.clients == ()


# --- sketches


def sketch(length: float, signs: np.ndarray) -> np.ndarray:
    head = np.frombuffer(np.array(length, "<f8").tobytes(), np.uint8)
    return np.concatenate([head, np.packbits(signs)])


def sketches(clients: int, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lengths (N,), signs (N, 8 size), and both in one (N, 8 + size)."""
    rng = np.random.default_rng(seed)
    signs, lengths = rng.integers(0, 2, (clients, 8 * size)), rng.uniform(0, 9, clients)
    return lengths, signs, np.stack([sketch(*both) for both in zip(lengths, signs, strict=True)])


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.sampled_from([8, 256, 4096]), st.sampled_from([IN_MEMORY, IN_A_FILE]), st.integers(0, 99))
def test_inner_products_of_sketches_are_those_of_vectors_at_the_angle_that_the_signs_tell(
    tmp_path_factory: pytest.TempPathFactory, clients: int, size: int, memory_bytes: int, seed: int
) -> None:
    lengths, signs, rows = sketches(clients, size, seed)
    with closing(SketchSpool(tmp_path_factory.mktemp("spool"), memory_bytes)) as spool:
        for client, row in enumerate(rows):
            spool.put(client, row)
        gram = spool.gram([*range(clients), 99])
    differ = np.array([[(one != other).mean() for other in signs] for one in signs])
    assert np.allclose(gram[:-1, :-1], np.cos(np.pi * differ) * np.outer(lengths, lengths), rtol=1e-12, atol=1e-12)
    assert np.array_equal(np.diagonal(gram)[:-1], lengths**2)
    assert np.array_equal(gram[:-1, :-1], gram[:-1, :-1].T)
    assert np.isnan(gram[-1]).all()
    assert np.isnan(gram[:, -1]).all()


def test_sketches_of_nobody_have_no_products(tmp_path: Path) -> None:
    with closing(SketchSpool(tmp_path)) as spool:
        assert spool.gram([]).shape == (0, 0)
        assert np.isnan(spool.gram([1, 2])).all()


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (sketch(-1.0, np.ones(64, int)), "its update is -1.0 long"),
        (sketch(math.nan, np.ones(64, int)), "its update is nan long"),
        (sketch(math.inf, np.ones(64, int)), "its update is inf long"),
        (sketch(1e200, np.ones(64, int)), "its update is 1e+200 long"),
        (np.zeros(8, np.uint8), "leaves none for signs"),
        (np.zeros(3, np.uint8), "leaves none for signs"),
        (np.zeros(16, np.float32), "not flat uint8"),
    ],
)
def test_what_is_no_sketch_is_refused(tmp_path: Path, shown: np.ndarray, reason: str) -> None:
    with closing(SketchSpool(tmp_path)) as spool, pytest.raises(ValueError, match=re.escape(reason)):
        spool.put(7, shown)


def test_groups_are_found_by_sketches_as_by_whole_updates(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    kinds = rng.standard_normal((4, 3000)).astype(np.float32)
    rows = np.repeat(kinds, 5, axis=0) + rng.standard_normal((20, 3000)).astype(np.float32)
    spec = (TensorSpec("w", "float32", (3000,)),)
    nothing = Weights.of({"w": np.zeros(3000)}, spec)
    with closing(SketchSpool(tmp_path)) as told, closing(UpdateSpool(tmp_path)) as whole:
        for client, row in enumerate(rows):
            told.put(client, reveal("sketch:4096", Weights.of({"w": row}, spec), nothing, 1.0, 3).arrays["update"])
            whole.put(client, row)
        sizes, alphas = rng.integers(50, 200, 20), np.full(20, 60.0)
        groups = partition(whole.gram(range(20)), sizes, alphas)
        assert len(groups) == 4
        assert partition(told.gram(range(20)), sizes, alphas) == groups
