from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from fedgsp.errors import DataError, TaskError
from fedgsp.partitions import PARTITIONS
from fedgsp_node.tasks import load_task
from fedgsp_node.tasks.grey_images import GreyImages
from tests.support.parts import parts


def test_the_published_files_and_the_npz_give_the_same_data(idx_folder: Path, grey_npz: Path) -> None:
    for one, two in zip(parts(GreyImages(idx_folder, 4)), parts(GreyImages(grey_npz, 4)), strict=True):
        assert np.array_equal(one.train.x, two.train.x)
        assert np.array_equal(one.test.y, two.test.y)


@pytest.mark.parametrize("partition", sorted({*PARTITIONS} - {"three_clients"}))
def test_every_test_image_is_held_by_exactly_one_client(
    grey_npz: Path, grey_arrays: dict[str, Any], partition: str
) -> None:
    held = np.concatenate([own.test.x for own in parts(GreyImages(grey_npz, 5, partition))])
    expected = grey_arrays["x_test"].reshape(60, 784) / np.float32(255)
    assert np.array_equal(np.sort(held.reshape(-1, 784), axis=0), np.sort(expected, axis=0))
    assert len(held) == 60


def test_a_clients_test_part_follows_the_label_mix_of_its_training_part(grey_npz: Path) -> None:
    task = GreyImages(grey_npz, 5, "shards", shards_per_client=2)
    for own in parts(task):
        assert set(own.test.y) <= set(own.train.y)
        assert np.abs(task.class_counts(own.train) * 0.3 - task.class_counts(own.test)).max() <= 1


def test_images_are_scaled_and_keep_their_labels(grey_npz: Path, grey_arrays: dict[str, Any]) -> None:
    train = GreyImages(grey_npz, 1, "iid").data(0).train
    assert train.x.dtype == np.float32
    assert train.x.shape == (200, 1, 28, 28)
    by_image = {
        image.tobytes(): label for image, label in zip(grey_arrays["x_train"], grey_arrays["y_train"], strict=True)
    }
    for image, label in zip(np.rint(train.x[:, 0] * 255).astype(np.uint8), train.y, strict=True):
        assert by_image[image.tobytes()] == label


def test_a_train_share_shrinks_the_training_part_only(grey_npz: Path) -> None:
    whole, small = (GreyImages(grey_npz, 4, "iid", train_share=share) for share in (1.0, 0.1))
    assert [len(own.train) for own in parts(small)] == [5] * 4
    assert [len(own.test) for own in parts(small)] == [len(own.test) for own in parts(whole)]


@pytest.mark.parametrize("share", [0, 1.5, float("nan")])
def test_a_train_share_outside_its_range_is_refused(grey_npz: Path, share: float) -> None:
    with pytest.raises(TaskError, match="above 0 and at most 1"):
        GreyImages(grey_npz, train_share=share)


def test_clients_of_their_own_split_never_see_the_test_file(grey_npz: Path, grey_arrays: dict[str, Any]) -> None:
    held = parts(GreyImages(grey_npz, 4, "iid", split="own", train_share=0.2))
    assert [(len(own.train), len(own.test)) for own in held] == [(10, 40)] * 4
    images = np.concatenate([part.x for own in held for part in (own.train, own.test)]).reshape(200, 784)
    expected = grey_arrays["x_train"].reshape(200, 784) / np.float32(255)
    assert sorted(image.tobytes() for image in images) == sorted(image.tobytes() for image in expected)


def test_hccts_sizes_are_half_normal_and_four_percent_are_trained_on(grey_npz: Path) -> None:
    held = parts(GreyImages(grey_npz, 5, "half_normal", split="own", train_share=0.04))
    sizes = [len(own.train) + len(own.test) for own in held]
    assert len(set(sizes)) > 1
    assert [len(own.train) for own in held] == [max(1, size - round(0.96 * size)) for size in sizes]


@pytest.mark.parametrize("share", [0, 1, 1.5, float("nan")])
def test_a_train_share_that_leaves_a_client_nothing_of_its_own_is_refused(grey_npz: Path, share: float) -> None:
    with pytest.raises(TaskError, match="with split=own, give a number between 0 and 1"):
        GreyImages(grey_npz, split="own", train_share=share)


def test_normalised_images_lie_between_minus_one_and_one(grey_npz: Path) -> None:
    plain, normalised = (GreyImages(grey_npz, 1, "iid", normalise=on).data(0) for on in (False, True))
    for part in ("train", "test"):
        assert np.allclose(getattr(normalised, part).x, 2 * getattr(plain, part).x - 1, atol=1e-6)
    assert normalised.train.x.dtype == np.float32


def test_hccts_model_has_50890_parameters_and_drops_half_of_its_hidden_units(grey_npz: Path) -> None:
    model: Any = GreyImages(grey_npz, 4, model="hcct").model()
    assert sum(weights.numel() for weights in model.parameters()) == 50_890
    hidden = model[:4](torch.ones(50, 1, 28, 28))
    live = (model.eval()[:4](torch.ones(50, 1, 28, 28)) > 0).sum()
    assert 0.4 < (hidden > 0).sum() / live < 0.6


@pytest.mark.parametrize("name", ["perceptron", "hcct"])
def test_a_double_softmax_changes_the_loss_but_not_what_is_right(
    grey_npz: Path, name: Literal["perceptron", "hcct"]
) -> None:
    plain, double = (GreyImages(grey_npz, 2, model=name, double_softmax=on) for on in (False, True))
    test = plain.data(0).test
    one, two = plain.model().eval(), double.model().eval()
    two.load_state_dict(one.state_dict())
    with torch.no_grad():
        logits, probabilities = (model(torch.from_numpy(test.x)) for model in (one, two))
    assert torch.allclose(probabilities, logits.softmax(dim=1))
    targets = torch.from_numpy(test.y)
    assert double.loss(probabilities, targets) != plain.loss(logits, targets)
    assert double.correct(probabilities, targets) == plain.correct(logits, targets)


def test_a_number_of_another_partition_is_refused(grey_npz: Path) -> None:
    with pytest.raises(TaskError, match="leave alpha out"):
        load_task("mnist", {"data": str(grey_npz), "partition": "iid", "alpha": "1"})


def test_the_model_takes_the_data_and_has_199210_parameters(grey_npz: Path) -> None:
    task = GreyImages(grey_npz, 4)
    model = task.model()
    assert sum(weights.numel() for weights in model.parameters()) == 199_210
    assert model(torch.from_numpy(task.data(0).train.x)).shape == (len(task.data(0).train), 10)


@pytest.mark.parametrize("name", ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"])
def test_each_missing_or_cut_file_is_named(idx_folder: Path, name: str) -> None:
    path = idx_folder / f"{name}-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=f"{name}-ubyte.gz cannot be read"):
        GreyImages(idx_folder)
    path.unlink()
    with pytest.raises(DataError, match=f"{name}-ubyte.gz does not exist"):
        GreyImages(idx_folder)


def test_another_number_of_labels_than_images_is_refused(idx_folder: Path) -> None:
    (idx_folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 1, 1])))
    with pytest.raises(DataError, match=r"train-labels.*shape \(2,\) for 200 images"):
        GreyImages(idx_folder)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("x_train", np.zeros((200, 8, 8), np.uint8), "shape"),
        ("x_train", np.zeros((200, 28, 28), np.float32), "float32"),
        ("x_test", np.zeros((0, 28, 28), np.uint8), "shape"),
        ("y_train", np.zeros(199, np.uint8), "for 200 images"),
        ("y_test", np.zeros(60, np.float64), "float64"),
        ("y_test", np.full(60, 10), "label 10, outside 0 .. 9"),
        ("y_test", np.full(60, -1), "label -1, outside 0 .. 9"),
    ],
)
def test_arrays_that_are_not_mnist_are_refused(
    tmp_path: Path, grey_arrays: dict[str, Any], key: str, value: Any, what: str
) -> None:
    path = tmp_path / "wrong.npz"
    np.savez(path, **(grey_arrays | {key: value}))
    with pytest.raises(DataError, match=what) as caught:
        GreyImages(path)
    assert "wrong.npz" in caught.value.what
    assert caught.value.remedy


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere does not exist; give a folder with the four \.gz files"):
        GreyImages(tmp_path / "nowhere")


def test_pixels_may_have_the_mean_and_deviation_of_fashion_mnist(grey_npz: Path) -> None:
    plain, standard = (
        load_task("fashion_mnist", {"data": str(grey_npz), "normalise": name}) for name in ("false", "standard")
    )
    expected = (np.asarray(plain.data(0).train.x, np.float32) - 0.2860) / 0.3530
    assert standard.data(0).train.x.dtype == np.float32
    assert np.allclose(standard.data(0).train.x, expected, atol=1e-6)
    assert np.allclose(
        standard.data(0).test.x, (np.asarray(plain.data(0).test.x, np.float32) - 0.2860) / 0.3530, atol=1e-6
    )


def test_another_scale_is_refused(grey_npz: Path) -> None:
    with pytest.raises(TaskError, match="give true or false or one of standard"):
        load_task("mnist", {"data": str(grey_npz), "normalise": "minmax"})


def test_a_shift_deals_training_and_test_file_together(grey_npz: Path, grey_arrays: dict[str, Any]) -> None:
    held = parts(GreyImages(grey_npz, 4, "concept_shift", decay=0))
    pixels = np.concatenate([part.x for own in held for part in (own.train, own.test)])
    images = [np.rint(image * 255).astype(np.uint8).tobytes() for image in pixels]
    both = [image.tobytes() for part in ("x_train", "x_test") for image in grey_arrays[part]]
    assert sorted(images) == sorted(both)


def test_a_shift_turns_images_after_they_are_scaled(grey_npz: Path) -> None:
    plain, standard = (
        GreyImages(grey_npz, 4, "feature_shift", decay=0, normalise=scale) for scale in (False, "standard")
    )
    assert np.allclose(
        standard.data(1).train.x, (np.asarray(plain.data(1).train.x, np.float32) - 0.2860) / 0.3530, atol=1e-5
    )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"partition": "label_shift", "split": "own"}, "no option split; it has test_share, decay; leave split out"),
        ({"partition": "label_shift", "train_share": "0.5"}, "leave train_share out"),
        ({"partition": "label_shift", "alpha": "1"}, "leave alpha out"),
        ({"partition": "label_shift", "clients": "10"}, "set clients to a multiple of 4"),
        ({"partition": "iid", "test_share": "0.5"}, "leave test_share out"),
        ({"partition": "shift"}, "concept_shift, dirichlet, feature_shift"),
    ],
)
def test_options_that_a_partition_does_not_take_are_refused(
    grey_npz: Path, options: dict[str, str], what: str
) -> None:
    with pytest.raises(TaskError, match=what):
        load_task("mnist", {"data": str(grey_npz), **options})


@pytest.mark.parametrize(("name", "tested"), [("mnist", 10_000), ("fashion_mnist", 5_000)])
def test_the_real_images_are_all_dealt(real_data: Path, name: str, tested: int) -> None:
    held = parts(load_task(name, {"data": str(real_data / f"{name}.npz"), "clients": "10"}))
    assert sum(len(own.train) for own in held) == 60_000
    assert sum(len(own.test) for own in held) == tested
