from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgsp.errors import DataError
from fedgsp.task import ClientData, Task
from fedgsp_node.tasks import load_task

pytestmark = pytest.mark.usefixtures("examples")

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
CHOL, CA = 4, 11


def load(data: Path, **options: str) -> Task:
    return load_task("heart_disease:Hospitals", {"data": str(data), **options})


def rows_of(hospital: str) -> np.ndarray:
    """40 patients; `ca` is always missing outside cleveland, cholesterol is 0 throughout switzerland."""
    rng = np.random.default_rng(HOSPITALS.index(hospital))
    x = rng.normal(100, 20, (40, 13)).round(1)
    if hospital != "cleveland":
        x[:, CA] = np.nan
    if hospital == "switzerland":
        x[:, CHOL] = 0
    return np.column_stack([x, np.arange(40) % 5])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for hospital in HOSPITALS:
        lines = [",".join("?" if np.isnan(value) else str(value) for value in row) for row in rows_of(hospital)]
        (tmp_path / f"processed.{hospital}.data").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def arrays() -> dict[str, Any]:
    rows = np.concatenate([rows_of(hospital) for hospital in HOSPITALS])
    held: dict[str, Any] = {}
    for part, chosen in (("train", np.arange(160) % 4 > 0), ("test", np.arange(160) % 4 == 0)):
        held[f"x_{part}"] = rows[chosen, :13].astype(np.float32)
        held[f"y_{part}"] = (rows[chosen, 13] > 0).astype(np.uint8)
        held[f"hospital_{part}"] = np.repeat(np.arange(4, dtype=np.int32), 40)[chosen]
    return held


def save(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path, **arrays)
    return path


def test_four_hospitals_hold_out_a_fifth_of_healthy_and_of_ill_patients(folder: Path) -> None:
    task = load(folder)
    held = [task.data(client) for client in range(task.num_clients)]
    assert [(len(own.train), len(own.test)) for own in held] == [(32, 8)] * 4
    assert all(own.test.y.sum() == 6 for own in held)
    assert all(own.train.y.sum() == 26 for own in held)


def test_the_npz_is_dealt_by_hospital(tmp_path: Path, arrays: dict[str, Any]) -> None:
    task = load(save(tmp_path / "heart.npz", arrays))
    held = [task.data(client) for client in range(4)]
    assert [(len(own.train), len(own.test)) for own in held] == [(30, 10)] * 4
    assert np.array_equal(held[2].train.y, arrays["y_train"][arrays["hospital_train"] == 2])


def test_a_hospital_scales_by_its_own_training_part_only(tmp_path: Path, arrays: dict[str, Any]) -> None:
    path = tmp_path / "heart.npz"
    before = load(save(path, arrays)).data(0)
    for part in ("train", "test"):
        arrays[f"x_{part}"][arrays[f"hospital_{part}"] > 0] += 1000
    after = load(save(path, arrays)).data(0)
    assert np.array_equal(before.train.x, after.train.x)
    assert np.allclose(before.train.x[:, :13].mean(axis=0), 0, atol=1e-5)
    assert np.allclose(before.train.x[:, :13].std(axis=0), 1, atol=1e-5)
    arrays["x_test"] += 1000
    assert np.array_equal(load(save(path, arrays)).data(0).train.x, before.train.x)


def test_what_is_missing_is_the_mean_and_is_said_so(folder: Path) -> None:
    task = load(folder)
    for client, chol, ca in ((0, 0, 0), (1, 0, 1), (2, 1, 1)):
        for part in (task.data(client).train, task.data(client).test):
            assert part.x.dtype == np.float32
            assert part.x.shape[1] == 17
            assert np.isfinite(part.x).all()
            assert (part.x[:, 13] == chol).all()
            assert (part.x[:, 15] == ca).all()
            assert (part.x[:, CHOL] == 0).all() == chol
            assert (part.x[:, CA] == 0).all() == ca


@pytest.mark.parametrize(("hidden", "parameters"), [("16", 322), ("0", 36)])
def test_the_model_takes_the_data(folder: Path, hidden: str, parameters: int) -> None:
    task = load(folder, hidden=hidden)
    model, train = task.model(), task.data(1).train
    assert sum(weights.numel() for weights in model.parameters()) == parameters
    outputs = model(torch.from_numpy(train.x))
    assert outputs.shape == (32, 2)
    assert task.loss(outputs, torch.from_numpy(train.y)).isfinite()


def test_the_area_under_the_curve_is_the_share_of_pairs_in_order(folder: Path) -> None:
    outputs = torch.tensor([[0.0, 1.0], [0.0, 3.0], [5.0, 7.0], [0.0, 4.0]])
    # ill: 3 and 2, healthy: 1 and 4; of the four pairs two are in order
    assert load(folder).metrics(outputs, torch.tensor([0, 1, 1, 0])) == {"auc": 0.5}
    assert load(folder).metrics(outputs, torch.tensor([1, 1, 1, 1])) == {}


@pytest.mark.parametrize("hospital", HOSPITALS)
@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda path: path.unlink(), "does not exist"),
        (lambda path: path.write_text(path.read_text()[:-20]), "cannot be read"),
        (lambda path: path.write_text("<html>\n"), "does not hold 13 features"),
        (lambda path: path.write_text(path.read_text().replace(",4.0\n", ",5.0\n", 1)), "a diagnosis 0 .. 4"),
        (lambda path: path.write_text(path.read_text().replace(",0.0\n", ",1.0\n", 7)), "cannot be split"),
    ],
)
def test_files_that_are_missing_cut_or_of_another_kind_are_refused_for_their_hospital_alone(
    folder: Path, hospital: str, edit: Callable[[Path], object], what: str
) -> None:
    edit(folder / f"processed.{hospital}.data")
    task, client = load(folder), HOSPITALS.index(hospital)
    with pytest.raises(DataError, match=rf"processed\.{hospital}\.data .*{what}") as caught:
        task.data(client)
    assert caught.value.remedy
    assert len(task.data((client + 1) % 4).train) == 32


def same(one: ClientData, other: ClientData) -> bool:
    return all(
        np.array_equal(getattr(getattr(one, part), axis), getattr(getattr(other, part), axis))
        for part in ("train", "test")
        for axis in ("x", "y")
    )


def test_a_hospital_needs_no_other_hospitals_file(folder: Path, tmp_path: Path) -> None:
    everybody = load(folder)
    for client, hospital in enumerate(HOSPITALS):
        own = tmp_path / "own" / hospital
        own.mkdir(parents=True)
        shutil.copy(folder / f"processed.{hospital}.data", own)
        task = load(own)
        assert task.num_clients == 4
        assert same(task.data(client), everybody.data(client))
        other = (client + 1) % 4
        with pytest.raises(DataError, match=f"client {other} is {HOSPITALS[other]}.*leave client {other} out of"):
            task.data(other)


def test_an_npz_may_hold_some_of_the_hospitals(tmp_path: Path, arrays: dict[str, Any]) -> None:
    everybody = load(save(tmp_path / "all.npz", arrays))
    some: dict[str, Any] = {}
    for part in ("train", "test"):
        chosen = np.isin(arrays[f"hospital_{part}"], (1, 3))
        some |= {name: array[chosen] for name, array in arrays.items() if name.endswith(part)}
    task = load(save(tmp_path / "some.npz", some))
    for client in (1, 3):
        assert same(task.data(client), everybody.data(client))
    with pytest.raises(DataError, match=r"client 2 is switzerland, but .*some\.npz has none of its patients"):
        task.data(2)


def test_a_file_is_read_once(folder: Path) -> None:
    task = load(folder)
    first = task.data(0)
    (folder / "processed.cleveland.data").unlink()
    assert task.data(0) is first


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("x_train", np.zeros((120, 12))),
        ("y_test", np.full(40, 2)),
        ("y_train", np.zeros(119, int)),
        ("hospital_test", np.zeros(39, int)),
        ("hospital_test", np.ones(40, int)),
        ("hospital_train", np.full(120, 4)),
    ],
)
def test_arrays_of_another_shape_or_range_are_refused(
    tmp_path: Path, arrays: dict[str, Any], key: str, value: Any
) -> None:
    with pytest.raises(DataError, match=r"heart\.npz.*_(train|test)"):
        load(save(tmp_path / "heart.npz", arrays | {key: value})).data(0)


def test_an_npz_that_is_missing_cut_or_partial_is_refused(tmp_path: Path, arrays: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"nowhere\.npz cannot be used"):
        load(tmp_path / "nowhere.npz").data(0)
    path = save(tmp_path / "cut.npz", arrays)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(DataError, match=r"cut\.npz cannot be used"):
        load(path).data(0)
    del arrays["hospital_test"]
    with pytest.raises(DataError, match="hospital_test"):
        load(save(tmp_path / "partial.npz", arrays)).data(0)


def test_the_real_files_and_the_real_npz_hold_the_same_patients(real_data: Path) -> None:
    published, packed = (load(real_data / name) for name in ("formats/heart_disease", "heart_disease.npz"))
    for client, patients in enumerate((303, 294, 123, 200)):
        one, two = published.data(client), packed.data(client)
        assert len(one.train) + len(one.test) == len(two.train) + len(two.test) == patients
        assert one.train.y.sum() + one.test.y.sum() == two.train.y.sum() + two.test.y.sum()
