from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgsp.errors import DataError, TaskError
from fedgsp.messages import TrainingSettings
from fedgsp_node.clients import Clients
from fedgsp_node.tasks import digit_domains, load_task
from fedgsp_node.tasks.digit_domains import DigitDomains
from fedgsp_node.training.control import Control
from tests.support.parts import parts


@pytest.fixture
def digit_arrays() -> dict[str, Any]:
    rng = np.random.default_rng(10)
    return {
        "x_train": rng.integers(0, 256, (120, 16, 16), dtype=np.uint8),
        "y_train": np.arange(120, dtype=np.uint8) % 10,
        "x_test": rng.integers(0, 256, (50, 16, 16), dtype=np.uint8),
        "y_test": np.arange(50, dtype=np.uint8) % 10,
    }


@pytest.fixture
def digit_folder(tmp_path: Path, digit_arrays: dict[str, Any]) -> Path:
    """Three sources: 16 x 16 grey, 28 x 28 grey, 32 x 32 in colour."""
    folder = tmp_path / "sources"
    folder.mkdir()
    np.savez(folder / "small.npz", **digit_arrays)
    rng = np.random.default_rng(11)
    for name, shape in (("plain", (28, 28)), ("street", (32, 32, 3))):
        images = {
            key: rng.integers(0, 256, (len(digit_arrays[key]), *shape), np.uint8) for key in ("x_train", "x_test")
        }
        np.savez(folder / f"{name}.npz", **(digit_arrays | images))
    return folder


def pixels(x: np.ndarray) -> np.ndarray:
    return np.rint((x + 1) * 127.5).astype(np.uint8)


def test_nothing_need_be_downloaded_for_three_domains_of_two_clients() -> None:
    task = load_task("digit_domains", {})
    held = parts(task)
    assert [(len(own.train), len(own.test)) for own in held] == [(185, 359)] * 4 + [(185, 500)] * 2
    for own in held:
        for part in (own.train, own.test):
            assert part.x.dtype == np.float32
            assert part.x.shape[1:] == (3, 28, 28)
            assert part.x.min() >= -1
            assert part.x.max() <= 1
            assert part.y.dtype == np.int64
            assert set(part.y) == set(range(10))


def test_every_file_of_a_folder_is_a_domain_before_those_of_our_own(digit_folder: Path) -> None:
    task = DigitDomains(str(digit_folder), clients_per_domain=1, samples=30, test_samples=20)
    named = DigitDomains(
        ",".join(str(digit_folder / f"{name}.npz") for name in ("street", "small")),
        "small,blended",
        clients_per_domain=1,
        samples=30,
        test_samples=20,
    )
    assert task.num_clients == 6
    assert named.num_clients == 2
    # plain, small, street, digits, blended, rendered: what a domain draws does not depend on the others
    for one, two in zip((task.data(1), task.data(4)), parts(named), strict=True):
        assert np.array_equal(one.train.x, two.train.x)
        assert np.array_equal(one.test.y, two.test.y)


def test_clients_of_a_domain_share_its_test_part_but_no_training_sample(digit_folder: Path) -> None:
    held = parts(DigitDomains(str(digit_folder), "plain", clients_per_domain=4, samples=30, test_samples=None))
    images = {image.tobytes() for own in held for image in own.train.x}
    assert len(images) == 120
    assert all(len(own.test) == 50 for own in held)
    assert all(np.array_equal(own.test.x, held[0].test.x) for own in held)
    assert not images & {image.tobytes() for image in held[0].test.x}


def test_validation_never_shows_a_test_sample_or_one_that_is_trained_on(
    tmp_path: Path, digit_arrays: dict[str, Any]
) -> None:
    for key in ("x_train", "x_test"):  # every image says by its first pixels which it is
        numbers = np.arange(len(digit_arrays[key])) + (200 if key == "x_test" else 0)
        digit_arrays[key][:, 0, 0] = numbers
    larger: dict[str, Any] = {
        key: np.repeat(np.repeat(x, 2, 1), 2, 2)[:, :28, :28] if "x" in key else x for key, x in digit_arrays.items()
    }
    np.savez(tmp_path / "own.npz", **larger)
    held = parts(DigitDomains(str(tmp_path / "own.npz"), domains="own", samples=30, validation=True))
    trained = {int(n) for own in held for n in pixels(own.train.x)[:, 0, 0, 0]}
    validated = {int(n) for n in pixels(held[0].test.x)[:, 0, 0, 0]}
    assert len(trained) == 60
    assert len(validated) == 50
    assert not trained & validated
    assert max(trained | validated) < 200
    with pytest.raises(TaskError, match="no training samples of a domain are left for validation"):
        DigitDomains(str(tmp_path / "own.npz"), domains="own", samples=60, validation=True)


def test_what_one_domain_is_validated_on_no_other_domain_of_its_base_trains_on(
    tmp_path: Path, digit_arrays: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digit_domains, "blended", lambda images, rng: images)
    digit_arrays["x_train"][:, 0, 0] = np.arange(len(digit_arrays["x_train"]))
    np.savez(tmp_path / "own.npz", **digit_arrays)
    held = parts(DigitDomains(str(tmp_path), "own,blended", blend="own", samples=30, validation=True))
    trained = {image.tobytes() for own in held for image in pixels(own.train.x)}
    validated = {image.tobytes() for own in held for image in pixels(own.test.x)}
    assert len(validated) >= 50
    assert not trained & validated


def test_images_keep_their_pixels_and_labels(digit_folder: Path) -> None:
    with np.load(digit_folder / "plain.npz", allow_pickle=False) as file:
        labels = {
            image.tobytes(): label
            for part in ("train", "test")
            for image, label in zip(file[f"x_{part}"], file[f"y_{part}"], strict=True)
        }
    own = DigitDomains(str(digit_folder), "plain", samples=40).data(1)
    for part in (own.train, own.test):
        assert (part.x == part.x[:, :1]).all()
        assert [labels[image[0].tobytes()] for image in pixels(part.x)] == part.y.tolist()


def test_images_of_other_sides_are_resized_and_colours_stay_in_their_planes(
    tmp_path: Path, digit_arrays: dict[str, Any]
) -> None:
    flat = np.broadcast_to(np.array([10, 120, 250], np.uint8), (120, 32, 32, 3))
    ramp = np.broadcast_to(np.arange(0, 256, 16, dtype=np.uint8), (120, 16, 16))
    for name, images in (("flat", flat), ("ramp", ramp)):
        np.savez(tmp_path / f"{name}.npz", **(digit_arrays | {"x_train": images}))
    task = DigitDomains(str(tmp_path), "flat,ramp", clients_per_domain=1, samples=5)
    assert (pixels(task.data(0).train.x) == np.array([10, 120, 250]).reshape(3, 1, 1)).all()
    row = pixels(task.data(1).train.x)[0, 0, 0].astype(int)
    # pixel centres: column c of 28 lies at 16 (c + 1/2) / 28 - 1/2 of 16, and the border repeats
    assert np.abs(row - np.clip((np.arange(28) + 0.5) * 16 / 28 - 0.5, 0, 15) * 16).max() <= 1


def test_scikit_learns_digits_hold_out_the_same_fifth_whatever_the_seed() -> None:
    held = [
        DigitDomains(domains="digits", clients_per_domain=1, samples=1438, test_samples=None, seed=seed).data(0)
        for seed in (0, 1)
    ]
    tested = [{image.tobytes() for image in own.test.x} for own in held]
    assert len(held[0].test) == 359
    assert tested[0] == tested[1]
    assert np.abs(np.bincount(held[0].test.y) * 4 - np.bincount(held[0].train.y)).max() <= 8


@pytest.mark.slow
def test_blended_digits_are_differences_to_patches_of_photographs(
    tmp_path: Path, digit_arrays: dict[str, Any]
) -> None:
    # black digits leave the patches as they are, white ones invert them
    images = np.zeros((120, 28, 28), np.uint8)
    images[digit_arrays["y_train"] >= 5] = 255
    np.savez(tmp_path / "base.npz", **(digit_arrays | {"x_train": images}))
    train = DigitDomains(str(tmp_path), "blended", blend="base", samples=60).data(0).train
    from sklearn.datasets import load_sample_images

    windows: dict[bytes, Any] = {}
    for photograph in load_sample_images().images:
        corners = np.lib.stride_tricks.sliding_window_view(photograph, (28, 28), axis=(0, 1))
        for top in range(corners.shape[0]):
            for left in range(corners.shape[1]):
                windows.setdefault(photograph[top, left : left + 4].tobytes(), []).append(corners[top, left])
    for image, label in list(zip(pixels(train.x), train.y, strict=True))[:8]:
        patch = 255 - image if label >= 5 else image
        start = patch[:, 0, :4].T.tobytes()
        assert any(np.array_equal(patch, window) for window in windows.get(start, []))


def test_blended_training_and_test_digits_come_from_either_part_of_the_base(
    tmp_path: Path, digit_arrays: dict[str, Any]
) -> None:
    images = {"x_train": np.zeros((120, 28, 28), np.uint8), "x_test": np.full((50, 28, 28), 255, np.uint8)}
    np.savez(tmp_path / "base.npz", **(digit_arrays | images))
    own = DigitDomains(str(tmp_path), "blended", blend="base", samples=60).data(0)
    # the photographs' sky is bright where it is plain; white digits turn it dark
    plain = [part.x[part.x.std(axis=(1, 2, 3)) < 0.15].mean() for part in (own.train, own.test)]
    assert plain[0] > plain[1]


def test_rendered_digits_are_balanced_and_unlike_each_other() -> None:
    own = DigitDomains(domains="rendered", samples=200, clients_per_domain=1, test_samples=100).data(0)
    assert np.bincount(own.train.y).tolist() == [20] * 10
    assert np.bincount(own.test.y).tolist() == [10] * 10
    assert len({image.tobytes() for image in np.concatenate([own.train.x, own.test.x])}) == 300


def test_rendered_digits_show_their_labels() -> None:
    own = DigitDomains(domains="rendered", samples=1500, clients_per_domain=1, test_samples=200).data(0)

    def ink(x: Any) -> Any:
        """Distance in colour from the corners, which are paper, each image scaled to length one."""
        paper = np.median(np.concatenate([x[:, :, :3, :3], x[:, :, -3:, -3:]], axis=2).reshape(len(x), 3, -1), axis=2)
        covered = np.abs(x - paper[:, :, None, None]).sum(axis=1)
        pooled = torch.nn.functional.avg_pool2d(torch.from_numpy(covered)[:, None], 2).flatten(1).numpy()
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)

    nearest = (ink(own.test.x) @ ink(own.train.x).T).argmax(axis=1)
    assert (own.train.y[nearest] == own.test.y).mean() > 0.6


def test_every_domain_follows_its_seed(digit_folder: Path) -> None:
    options: dict[str, Any] = {"data": str(digit_folder), "samples": 20, "test_samples": 10, "clients_per_domain": 1}
    first, same, other = (parts(DigitDomains(**options, seed=seed)) for seed in (1, 1, 2))
    for one, two, three in zip(first, same, other, strict=True):
        assert np.array_equal(one.train.x, two.train.x)
        assert np.array_equal(one.test.x, two.test.x)
        assert not np.array_equal(one.train.x, three.train.x)


def test_a_client_has_as_many_samples_as_in_hcct() -> None:
    """The smallest source has 7,438 for training. Half of a tenth of them is loaded, and divided among two clients."""
    assert len(DigitDomains(domains="digits").data(0).train) == int(7_438 // 10 * 0.5) // 2


@pytest.mark.parametrize(("drop_last", "steps"), [(True, 10), (False, 15)])
def test_185_samples_are_ten_steps_of_64_in_five_epochs(drop_last: bool, steps: int) -> None:
    clients = Clients(DigitDomains(domains="digits", width=0.02, drop_last=drop_last), [0])
    how = TrainingSettings("sgd", 5, 64, 0.1, seed=0)
    assert clients.train(0, clients.initial_weights(0), how, 1, Control()).steps == steps


def test_the_model_has_14219210_parameters_and_5637_buffer_entries() -> None:
    model = DigitDomains(domains="digits").model()
    assert sum(weights.numel() for weights in model.parameters()) == 14_219_210
    assert sum(buffer.numel() for buffer in model.buffers()) == 5_637
    layers = [sum(weights.numel() for weights in layer.parameters()) for layer in model.children()]
    assert [count for count in layers if count] == [
        4_864, 128, 102_464, 128, 204_928, 256, 12_847_104, 4_096, 1_049_088, 1_024, 5_130,
    ]  # fmt: skip


@pytest.mark.parametrize("width", [1, 0.25, 0.001])
def test_a_model_of_any_width_takes_the_data(width: float) -> None:
    task = DigitDomains(domains="digits", width=width)
    assert task.model()(torch.from_numpy(task.data(0).train.x[:4])).shape == (4, 10)


def test_a_quarter_of_the_width_has_about_a_sixteenth_of_the_parameters() -> None:
    model = DigitDomains(domains="digits", width=0.25).model()
    assert sum(weights.numel() for weights in model.parameters()) == 892_154


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"domains": "digits,svhn"}, "no domain 'svhn'; choose from digits, blended, rendered"),
        ({"domains": "digits,digits"}, "named twice"),
        ({"domains": "digits,"}, "no domain ''"),
        ({"blend": "mnist"}, "'mnist' cannot be blended; set blend to one of digits"),
        ({"blend": "rendered"}, "'rendered' cannot be blended"),
        ({"clients_per_domain": "0"}, "clients_per_domain is 0"),
        ({"samples": "0"}, "samples is 0"),
        ({"samples": "720"}, r"'digits' has 1438 training samples.*set samples to 1 \.\. 719"),
        ({"clients_per_domain": "8"}, r"too few for 8 clients with 185 each; set samples to 1 \.\. 179"),
        ({"test_samples": "0"}, "test_samples is 0"),
        ({"width": "0"}, "width is 0"),
        ({"width": "1.5"}, "width is 1.5"),
        ({"width": "nan"}, "width is nan"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, str], what: str) -> None:
    with pytest.raises(TaskError, match=what):
        load_task("digit_domains", options)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("x_train", np.zeros((120, 16, 28), np.uint8), "shape"),
        ("x_train", np.zeros((120, 784), np.uint8), "shape"),
        ("x_test", np.zeros((50, 16, 16), np.float32), "float32"),
        ("x_test", np.zeros((0, 16, 16), np.uint8), "shape"),
        ("y_train", np.zeros(119, np.uint8), "for 120 images"),
        ("y_test", np.full(50, 10), "label 10, outside 0 .. 9"),
    ],
)
def test_arrays_that_are_not_digits_are_refused(
    tmp_path: Path, digit_arrays: dict[str, Any], key: str, value: Any, what: str
) -> None:
    path = tmp_path / "wrong.npz"
    np.savez(path, **(digit_arrays | {key: value}))
    with pytest.raises(DataError, match=what) as caught:
        DigitDomains(str(path))
    assert "wrong.npz" in caught.value.what
    assert caught.value.remedy


def test_files_that_are_not_there_cut_or_called_alike_are_refused(
    tmp_path: Path, digit_folder: Path, digit_arrays: dict[str, Any]
) -> None:
    with pytest.raises(DataError, match="nowhere does not exist; give folders or"):
        DigitDomains(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no \.npz file"):
        DigitDomains(str(tmp_path / "empty"))
    with pytest.raises(DataError, match=r"small\.npz is a second domain called 'small'; rename"):
        DigitDomains(f"{digit_folder},{digit_folder / 'small.npz'}")
    np.savez(tmp_path / "digits.npz", **digit_arrays)
    with pytest.raises(DataError, match="second domain called 'digits'"):
        DigitDomains(str(tmp_path / "digits.npz"))
    (digit_folder / "plain.npz").write_bytes((digit_folder / "plain.npz").read_bytes()[:-500])
    with pytest.raises(DataError, match=r"plain\.npz cannot be read"):
        DigitDomains(str(digit_folder), "plain")
    assert DigitDomains(str(digit_folder), "small", samples=10).num_clients == 2


@pytest.mark.parametrize(("domain", "package"), [("blended", "pillow"), ("rendered", "matplotlib")])
def test_a_missing_package_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, domain: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert DigitDomains(domains="digits").num_clients == 2
    with pytest.raises(TaskError, match=rf"{domain!r} needs {package}.*pip install 'matplotlib>=3.9' pillow"):
        DigitDomains(domains=domain)


def test_real_mnist_and_usps_are_domains(real_data: Path) -> None:
    task = DigitDomains(str(real_data), "mnist,usps,blended", blend="mnist", test_samples=None)
    held = parts(task)
    assert [len(own.train) for own in held] == [185] * 6
    assert [len(own.test) for own in held] == [10_000] * 2 + [2007] * 2 + [10_000] * 2
    # ink on black paper, grey in colour's three planes, and photographs behind the blended ones
    assert np.median(np.asarray(held[0].train.x, np.float32)) == -1
    assert (held[2].train.x[:, 0] == held[2].train.x[:, 2]).all()
    assert (held[4].train.x[:, 0] != held[4].train.x[:, 2]).mean() > 0.5
