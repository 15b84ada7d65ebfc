from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from fedgsp.errors import DataError, TaskError
from fedgsp_node.tasks import load_task
from fedgsp_node.tasks.cifar10 import Cifar10, CropAndFlip, cropped_and_flipped
from tests.support.parts import parts

MEAN = np.array([0.4914, 0.4822, 0.4465]).reshape(3, 1, 1)
DEVIATION = np.array([0.2023, 0.1994, 0.2010]).reshape(3, 1, 1)


def pixels(x: np.ndarray) -> np.ndarray:
    """Images as the task gives them back to bytes of shape (n, 32, 32, 3)."""
    return np.rint((x * DEVIATION + MEAN) * 255).astype(np.uint8).transpose(0, 2, 3, 1)


@pytest.mark.parametrize("split", ["own", "official"])
def test_the_binary_batches_and_the_npz_give_the_same_data(
    cifar_folder: Path, cifar_npz: Path, split: Literal["own", "official"]
) -> None:
    tasks = (Cifar10(data, 4, split=split) for data in (cifar_folder, cifar_npz))
    for one, two in zip(*map(parts, tasks), strict=True):
        for part in ("train", "test"):
            assert np.array_equal(getattr(one, part).x, getattr(two, part).x)
            assert np.array_equal(getattr(one, part).y, getattr(two, part).y)


def test_images_are_normalised_by_channel_and_keep_their_labels(cifar_npz: Path, cifar_arrays: dict[str, Any]) -> None:
    train = Cifar10(cifar_npz, 1, "iid", split="official", train_share=1).data(0).train
    assert train.x.dtype == np.float32
    assert train.x.shape == (500, 3, 32, 32)
    by_image = {
        image.tobytes(): label for image, label in zip(cifar_arrays["x_train"], cifar_arrays["y_train"], strict=True)
    }
    assert [by_image[image.tobytes()] for image in pixels(train.x)] == train.y.tolist()


def test_clients_hold_single_label_shards_and_train_on_a_fifth_of_them(cifar_npz: Path) -> None:
    for own in parts(Cifar10(cifar_npz)):
        counts = np.bincount(np.concatenate([own.train.y, own.test.y]), minlength=10)
        assert (counts % 5 == 0).all()
        assert len(own.train) == max(1, round(0.2 * counts.sum()))
        assert len(own.test) == counts.sum() - len(own.train)


def test_no_image_is_trained_on_and_tested_on(cifar_npz: Path) -> None:
    held = parts(Cifar10(cifar_npz, 5, "iid"))
    images = [image.tobytes() for own in held for part in (own.train, own.test) for image in part.x]
    assert len(images) == len(set(images)) == 500


def test_the_official_test_file_is_dealt_whole(cifar_npz: Path, cifar_arrays: dict[str, Any]) -> None:
    held = np.concatenate([own.test.x for own in parts(Cifar10(cifar_npz, 4, "shards", split="official"))])
    assert sorted(image.tobytes() for image in pixels(held)) == sorted(
        image.tobytes() for image in cifar_arrays["x_test"]
    )


def test_three_clients_are_dealt_as_in_the_motivating_example(cifar_npz: Path) -> None:
    held = parts(Cifar10(cifar_npz, 3, "three_clients"))
    assert [len(own.train) + len(own.test) for own in held] == [50, 200, 250]
    assert [set(own.train.y) for own in held] == [set(range(5)), set(range(5)), set(range(5, 10))]


def test_a_seed_gives_the_same_data_again(cifar_npz: Path) -> None:
    first, same, other = (Cifar10(cifar_npz, seed=seed).data(0).train.x for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("augment", [True, False])
def test_the_model_has_1126950_parameters_and_no_buffers(cifar_npz: Path, augment: bool) -> None:
    task = Cifar10(cifar_npz, augment=augment)
    model = task.model()
    assert sum(weights.numel() for weights in model.parameters()) == 1_126_950
    assert not list(model.buffers())
    assert next(iter(model.state_dict())) == "1.weight"
    test = task.data(0).test
    assert model(torch.from_numpy(test.x)).shape == (len(test), 10)


def test_a_quarter_of_the_dense_units_are_dropped_while_training(cifar_npz: Path) -> None:
    model = Cifar10(cifar_npz, augment=False).model()
    *layers, head = model.children()
    assert isinstance(head, torch.nn.Linear)
    x = torch.ones(50, 3, 32, 32)
    with torch.no_grad():
        trained = (torch.nn.Sequential(*layers).train()(x) > 0).sum()
        live = (torch.nn.Sequential(*layers).eval()(x) > 0).sum()
    assert 0.72 < trained / live < 0.78


def test_fedcollabs_model_has_122570_parameters_and_augments_only_if_asked(cifar_npz: Path) -> None:
    task = Cifar10(cifar_npz, model="fedcollab")
    model: Any = task.model()
    assert sum(weights.numel() for weights in model.parameters()) == 122_570
    assert [tuple(weights.shape) for weights in model.parameters() if weights.ndim > 1] == [
        *[(32, 3, 3, 3), (64, 32, 3, 3), (64, 64, 3, 3)],
        *[(64, 1024), (10, 64)],
    ]
    test = task.data(0).test
    assert model(torch.from_numpy(test.x)).shape == (len(test), 10)
    assert not isinstance(model[0], CropAndFlip)
    augmented = Cifar10(cifar_npz, model="fedcollab", augment=True).model()
    assert isinstance(next(augmented.children()), CropAndFlip)


def test_a_shift_deals_training_and_test_file_together(cifar_npz: Path, cifar_arrays: dict[str, Any]) -> None:
    held = parts(Cifar10(cifar_npz, 4, "concept_shift", decay=0))
    images = [image.tobytes() for own in held for part in (own.train, own.test) for image in pixels(part.x)]
    both = [image.tobytes() for part in ("x_train", "x_test") for image in cifar_arrays[part]]
    assert sorted(images) == sorted(both)


def test_rotated_images_are_not_mirrored_unless_asked_for(cifar_npz: Path) -> None:
    """What is rotated one way would become what is rotated the other way."""
    shifted = Cifar10(cifar_npz, 4, "feature_shift")
    assert not isinstance(next(shifted.model().children()), CropAndFlip)
    augmented = Cifar10(cifar_npz, 4, "feature_shift", augment=True).model()
    assert isinstance(next(augmented.children()), CropAndFlip)


def test_a_shift_needs_both_files(tmp_path: Path, cifar_arrays: dict[str, Any]) -> None:
    path = tmp_path / "train_only.npz"
    np.savez(path, **{key: cifar_arrays[key] for key in ("x_train", "y_train")})
    with pytest.raises(DataError, match="no array 'x_test'"):
        Cifar10(path, partition="feature_shift")


def test_augmented_images_are_crops_of_the_padded_image_or_its_mirror_image() -> None:
    torch.manual_seed(0)
    image = torch.arange(1.0, 1 + 2 * 6 * 5).reshape(2, 6, 5)
    black = np.array([-1, -2], np.float32)
    padded = torch.stack([torch.full((10, 9), value) for value in black])
    padded[:, 2:-2, 2:-2] = image
    allowed = {
        (crop.flip(2) if flip else crop).contiguous().numpy().tobytes(): (top, left, flip)
        for top in range(5)
        for left in range(5)
        for flip in (False, True)
        for crop in [padded[:, top : top + 6, left : left + 5]]
    }
    augmented = cropped_and_flipped(image.expand(2000, 2, 6, 5), black, margin=2)
    times = dict.fromkeys(allowed.values(), 0)
    for one in augmented:
        times[allowed[one.contiguous().numpy().tobytes()]] += 1
    # 40 expected of each of the 50, deviation 6.3
    assert 10 < min(times.values()) <= max(times.values()) < 75


def test_only_training_images_are_augmented_and_only_if_asked(cifar_npz: Path) -> None:
    for augment in (True, False):
        task = Cifar10(cifar_npz, augment=augment)
        first, x = next(task.model().children()), torch.from_numpy(task.data(0).train.x)
        assert torch.equal(first.eval()(x), x)
        assert torch.equal(first.train()(x), x) is not augment


def test_test_images_are_augmented_once_if_the_release_is_to_be_matched(cifar_npz: Path) -> None:
    plain, matched, again = (Cifar10(cifar_npz, augment_test=on).data(0) for on in (False, True, True))
    assert np.array_equal(matched.train.x, plain.train.x)
    assert np.array_equal(matched.test.y, plain.test.y)
    assert np.array_equal(matched.test.x, again.test.x)
    moved = [not np.array_equal(one, other) for one, other in zip(matched.test.x, plain.test.x, strict=True)]
    assert sum(moved) > len(moved) / 2
    assert not np.array_equal(Cifar10(cifar_npz, augment_test=True, seed=1).data(0).test.x, matched.test.x)


def test_augmentation_follows_the_seed_of_torch(cifar_npz: Path) -> None:
    task = Cifar10(cifar_npz)
    first, x = next(task.model().children()), torch.from_numpy(task.data(0).train.x)
    crops = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        crops.append(first(x))
    assert torch.equal(crops[0], crops[1])
    assert not torch.equal(crops[0], crops[2])


@pytest.mark.parametrize("name", [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"])
def test_each_missing_cut_or_empty_batch_is_named(cifar_folder: Path, name: str) -> None:
    path = cifar_folder / f"{name}.bin"
    whole = path.read_bytes()
    for content in (whole[:-1], b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}\.bin cannot be read as .*its size is {len(content)} bytes"):
            Cifar10(cifar_folder, split="official")
    path.unlink()
    with pytest.raises(DataError, match=rf"{name}\.bin does not exist"):
        Cifar10(cifar_folder, split="official")


def test_a_batch_with_another_label_is_refused(cifar_folder: Path) -> None:
    path = cifar_folder / "data_batch_3.bin"
    content = bytearray(path.read_bytes())
    content[2 * 3073] = 10
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"data_batch_3\.bin has the label 10, outside 0 \.\. 9"):
        Cifar10(cifar_folder)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("x_train", np.zeros((500, 3, 32, 32), np.uint8), "shape"),
        ("x_train", np.zeros((500, 32, 32, 3), np.float32), "float32"),
        ("x_test", np.zeros((0, 32, 32, 3), np.uint8), "shape"),
        ("y_train", np.zeros(499, np.uint8), "for 500 images"),
        ("y_test", np.zeros(40), "float64"),
        ("y_test", np.full(40, 10), "label 10, outside 0 .. 9"),
    ],
)
def test_arrays_that_are_not_cifar10_are_refused(
    tmp_path: Path, cifar_arrays: dict[str, Any], key: str, value: Any, what: str
) -> None:
    path = tmp_path / "wrong.npz"
    np.savez(path, **(cifar_arrays | {key: value}))
    with pytest.raises(DataError, match=what) as caught:
        Cifar10(path, split="official")
    assert "wrong.npz" in caught.value.what
    assert caught.value.remedy


def test_a_missing_path_an_empty_folder_and_a_cut_npz_are_refused(tmp_path: Path, cifar_npz: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere does not exist; give the folder that holds data_batch_1\.bin"):
        Cifar10(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"data_batch_1\.bin does not exist"):
        Cifar10(tmp_path / "empty")
    cifar_npz.write_bytes(cifar_npz.read_bytes()[:-500])
    with pytest.raises(DataError, match=r"cifar\.npz cannot be read"):
        Cifar10(cifar_npz)


def test_a_test_file_is_only_needed_to_test_on(tmp_path: Path, cifar_arrays: dict[str, Any]) -> None:
    path = tmp_path / "train_only.npz"
    np.savez(path, **{key: cifar_arrays[key] for key in ("x_train", "y_train")})
    assert sum(len(own.test) for own in parts(Cifar10(path, 5, "iid"))) == 400
    with pytest.raises(DataError, match="no array 'x_test'"):
        Cifar10(path, split="official")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"train_share": "1"}, "with split=own, give a number between 0 and 1"),
        ({"split": "official", "train_share": "1.1"}, "above 0 and at most 1"),
        ({"clients": "0"}, r"set clients to 1 \.\. 500"),
        ({"shards": "501"}, r"set shards to 10 \.\. 500"),
        ({"partition": "three_clients"}, "set clients to 3"),
        ({"split": "mine"}, "give one of official, own"),
    ],
)
def test_options_that_cannot_work_are_refused(cifar_npz: Path, options: dict[str, str], what: str) -> None:
    with pytest.raises(TaskError, match=what):
        load_task("cifar10", {"data": str(cifar_npz), **options})


def test_the_real_records_are_the_real_images(real_data: Path, tmp_path: Path) -> None:
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        shutil.copyfile(real_data / "formats" / "cifar10_bin200.bin", tmp_path / f"{name}.bin")
    test = Cifar10(tmp_path, 1, "iid", split="official").data(0).test
    with np.load(real_data / "cifar10_exact4k.npz", allow_pickle=False) as held:
        images, labels = held["x_train"][:200], held["y_train"][:200]
    by_image = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    assert len(test) == 200
    assert [by_image[image.tobytes()] for image in pixels(test.x)] == test.y.tolist()


def test_the_real_images_are_dealt_in_shards(real_data: Path) -> None:
    task = Cifar10(real_data / "cifar10.npz")
    sizes = [sum(map(len, (own.train, own.test))) for own in map(task.data, range(3))]
    assert all(size % 200 == 0 for size in sizes)
