from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgsp.errors import DataError, TaskError
from fedgsp_node.rehearsal import training_flop
from fedgsp_node.tasks import load_task
from fedgsp_node.tasks.femnist import Femnist
from tests.support.parts import parts


def test_a_client_is_a_writer(femnist_npz: Path, femnist_arrays: dict[str, Any]) -> None:
    held = parts(Femnist(femnist_npz))
    assert [len(own.train) for own in held] == [4, 6, 8, 10, 12]
    assert [len(own.test) for own in held] == [1, 2, 3, 4, 5]
    own = femnist_arrays["writer_train"] == 2
    assert np.array_equal(np.rint(held[2].train.x[:, 0] * 255), femnist_arrays["x_train"][own])
    assert np.array_equal(held[2].train.y, femnist_arrays["y_train"][own])
    assert held[2].train.x.dtype == np.float32


def test_ink_may_be_bright_as_in_mnist(femnist_npz: Path) -> None:
    for dark, bright in zip(parts(Femnist(femnist_npz)), parts(Femnist(femnist_npz, ink="bright")), strict=True):
        for part in ("train", "test"):
            assert np.allclose(getattr(dark, part).x + getattr(bright, part).x, 1)
            assert np.array_equal(getattr(dark, part).y, getattr(bright, part).y)


def test_leaf_files_and_the_npz_give_the_same_data(leaf_folder: Path, femnist_npz: Path) -> None:
    for one, two in zip(parts(Femnist(leaf_folder)), parts(Femnist(femnist_npz)), strict=True):
        for part in ("train", "test"):
            assert np.array_equal(getattr(one, part).x, getattr(two, part).x)
            assert np.array_equal(getattr(one, part).y, getattr(two, part).y)


def test_a_user_spread_over_several_files_is_one_writer(leaf_folder: Path) -> None:
    whole = Femnist(leaf_folder).data(0)
    first, second = (leaf_folder / "train" / f"all_data_{number}.json" for number in (0, 1))
    content, other = json.loads(first.read_text()), json.loads(second.read_text())
    own = content["user_data"]["f0000_11"]
    other["user_data"]["f0000_11"] = {key: values[3:] for key, values in own.items()}
    content["user_data"]["f0000_11"] = {key: values[:3] for key, values in own.items()}
    first.write_text(json.dumps(content))
    second.write_text(json.dumps(other))
    task = Femnist(leaf_folder)
    assert task.num_clients == 5
    assert np.array_equal(task.data(0).train.x, whole.train.x)


def test_writers_are_drawn_by_seed_and_numbered_as_in_the_file(femnist_npz: Path) -> None:
    draws = [tuple(len(own.train) for own in parts(Femnist(femnist_npz, writers=3, seed=seed))) for seed in range(8)]
    assert all(list(draw) == sorted(draw) and len(set(draw)) == 3 for draw in draws)
    assert len(set(draws)) > 1
    assert draws[3] == tuple(len(own.train) for own in parts(Femnist(femnist_npz, writers=3, seed=3)))


def test_writers_with_few_samples_are_left_out(femnist_npz: Path) -> None:
    assert [len(own.train) for own in parts(Femnist(femnist_npz, min_samples=11))] == [8, 10, 12]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"writers": 6}, r"set writers to 1 \.\. 5"),
        ({"writers": 0}, r"set writers to 1 \.\. 5"),
        ({"writers": 3, "min_samples": 14}, r"set writers to 1 \.\. 2"),
        ({"min_samples": 100}, "lower min_samples"),
    ],
)
def test_writers_that_are_not_there_are_refused(femnist_npz: Path, options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(TaskError, match=remedy):
        Femnist(femnist_npz, **options)


def test_validation_never_shows_a_test_sample(femnist_npz: Path) -> None:
    plain, validated = parts(Femnist(femnist_npz)), parts(Femnist(femnist_npz, validation=True))
    for one, two in zip(plain, validated, strict=True):
        assert len(two.test) == 1
        images = np.concatenate([two.train.x, two.test.x])
        assert sorted(image.tobytes() for image in images) == sorted(image.tobytes() for image in one.train.x)


def test_the_model_is_leafs_network(femnist_npz: Path) -> None:
    task = Femnist(femnist_npz)
    model = task.model()
    layers = [sum(weights.numel() for weights in layer.parameters()) for layer in model.children()]
    assert [count for count in layers if count] == [832, 51_264, 6_424_576, 127_038]
    assert sum(layers) == 6_603_710
    assert sum(weights.numel() * weights.element_size() for weights in model.parameters()) == 26_414_840
    assert model(torch.from_numpy(task.data(1).train.x)).shape == (6, 62)
    # A multiply-add is two operations, and a training step costs three times the forward pass.
    assert training_flop(model, torch.from_numpy(task.data(1).train.x[:1])) == 3 * 2 * 17_211_904


def test_the_small_model_has_the_same_form_and_fewer_weights(femnist_npz: Path) -> None:
    task = Femnist(femnist_npz, model="small")
    model = task.model()
    layers = [sum(weights.numel() for weights in layer.parameters()) for layer in model.children()]
    assert [count for count in layers if count] == [208, 3_216, 100_480, 7_998]
    assert sum(layers) == 111_902
    assert model(torch.from_numpy(task.data(1).train.x)).shape == (6, 62)


def test_leafs_initialisation_is_glorot_uniform_without_biases(femnist_npz: Path) -> None:
    torch.manual_seed(0)
    model: Any = Femnist(femnist_npz, initialisation="leaf").model()
    for layer, fans in ((0, 25 + 800), (3, 800 + 1600), (7, 3136 + 2048), (9, 2048 + 62)):
        limit = (6 / fans) ** 0.5
        assert 0.95 * limit < model[layer].weight.abs().max() <= limit
        assert not model[layer].bias.any()


def test_an_unknown_initialisation_is_refused(femnist_npz: Path) -> None:
    with pytest.raises(TaskError, match="give one of pytorch, leaf"):
        load_task("femnist", {"data": str(femnist_npz), "initialisation": "xavier"})


def test_a_split_by_user_is_refused(tmp_path: Path, femnist_arrays: dict[str, Any]) -> None:
    path = tmp_path / "by_user.npz"
    np.savez(path, **(femnist_arrays | {"writer_test": femnist_arrays["writer_test"] + 5}))
    with pytest.raises(DataError, match=r"no writer of .*by_user\.npz is in both parts; divide the data by sample"):
        Femnist(path)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("x_train", np.zeros((40, 784), np.uint8), "x_train has dtype uint8 and shape"),
        ("x_test", np.zeros((15, 28, 28), np.float32), "x_test has dtype float32"),
        ("y_train", np.zeros(39, np.uint8), "y_train has dtype uint8 and shape .39,. for 40 images"),
        ("writer_test", np.zeros(15), "writer_test has dtype float64"),
        ("writer_test", np.full(15, -1), "writer_test contains the number -1"),
        ("y_test", np.full(15, 62), "label 62, outside 0 .. 61"),
    ],
)
def test_arrays_that_are_not_femnist_are_refused(
    tmp_path: Path, femnist_arrays: dict[str, Any], key: str, value: Any, what: str
) -> None:
    path = tmp_path / "wrong.npz"
    np.savez(path, **(femnist_arrays | {key: value}))
    with pytest.raises(DataError, match=what) as caught:
        Femnist(path)
    assert "wrong.npz" in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize("key", ["x_train", "y_train", "writer_train", "x_test", "y_test", "writer_test"])
def test_a_missing_array_is_named(tmp_path: Path, femnist_arrays: dict[str, Any], key: str) -> None:
    path = tmp_path / "partial.npz"
    np.savez(path, **{name: value for name, value in femnist_arrays.items() if name != key})
    with pytest.raises(DataError, match=f"no array {key!r}"):
        Femnist(path)


def test_a_cut_npz_is_refused(femnist_npz: Path) -> None:
    femnist_npz.write_bytes(femnist_npz.read_bytes()[:-500])
    with pytest.raises(DataError, match=r"femnist\.npz cannot be read"):
        Femnist(femnist_npz)


def test_a_missing_path_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere does not exist"):
        Femnist(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"train holds no \.json file"):
        Femnist(tmp_path)


def edited(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    path = folder / "test" / "all_data_1.json"
    content = json.loads(path.read_text())
    change(content, content["user_data"]["f0003_11"])
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda content, user: content.pop("user_data"), "no object user_data"),
        (lambda content, user: user.pop("x"), "KeyError"),
        (lambda content, user: user["x"][0].pop(), "784 numbers"),
        (lambda content, user: [row.pop() for row in user["x"]], "784 numbers"),
        (lambda content, user: user["x"].pop(), "3 images"),
        (lambda content, user: user["x"][0].__setitem__(0, 1.5), "pixels outside 0 .. 1"),
        (lambda content, user: user["x"][0].__setitem__(0, "a"), "784 numbers"),
        (lambda content, user: user["x"][0].__setitem__(0, float("nan")), "pixels outside 0 .. 1"),
        (lambda content, user: user.__setitem__("y", [0.5] * 4), "not one whole-number label for each"),
        (lambda content, user: user["y"].__setitem__(0, 62), "label 62, outside 0 .. 61"),
        (lambda content, user: content["user_data"].__setitem__("f0003_11", 3), "TypeError"),
    ],
)
def test_leaf_files_of_another_shape_are_refused(
    leaf_folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], object], what: str
) -> None:
    edited(leaf_folder, change)
    with pytest.raises(DataError, match=what) as caught:
        Femnist(leaf_folder)
    assert "all_data_1.json" in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize("content", [b'{"users": ["f0', b"", b"\x93\xffabc", b"[1, 2]"])
def test_a_cut_or_other_json_file_is_refused(leaf_folder: Path, content: bytes) -> None:
    (leaf_folder / "train" / "all_data_0.json").write_bytes(content)
    with pytest.raises(DataError, match=r"all_data_0\.json (cannot be read as a JSON file|has no object user_data)"):
        Femnist(leaf_folder)


def test_the_real_leaf_files_equal_the_same_writers_of_the_npz(real_data: Path) -> None:
    whole = Femnist(real_data / "femnist.npz")
    by_last_image = {whole.data(client).train.x[-1].tobytes(): client for client in range(whole.num_clients)}
    assert whole.num_clients == 1500
    for own in parts(Femnist(real_data / "formats" / "leaf_femnist")):
        same = whole.data(by_last_image[own.train.x[-1].tobytes()])
        assert np.array_equal(own.train.x, same.train.x)
        assert np.array_equal(own.train.y, same.train.y)
        assert np.array_equal(own.test.x, same.test.x)


def test_the_real_writers_with_a_hundred_samples_are_counted(real_data: Path) -> None:
    task = Femnist(real_data / "femnist.npz", writers=368, min_samples=100)
    held = [task.data(client) for client in range(20)]
    assert task.num_clients == 368
    assert min(len(own.train) + len(own.test) for own in held) >= 100
    # White paper is 1.0.
    assert all(np.median(np.asarray(own.train.x, np.float32)) == 1 for own in held)
