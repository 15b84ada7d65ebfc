from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedgsp.seeds import stream
from fedgsp_node.tasks.cifar10 import Cifar10
from fedgsp_node.tasks.digits import Digits
from fedgsp_node.tasks.gradients import CELLS, gradients_and_colours
from fedgsp_node.tasks.shifts import rotated


def by_cell(features: torch.Tensor) -> torch.Tensor:
    return features.view(len(features), 7, CELLS, CELLS)


@pytest.fixture
def images() -> torch.Tensor:
    """Blurred noise: like photographs, neighbouring pixels are alike."""
    noise = torch.from_numpy(stream(0, "images").normal(size=(6, 3, 36, 36)).astype(np.float32))
    return torch.nn.functional.avg_pool2d(noise, 5, 1) * 5


def test_each_cell_has_four_gradients_and_three_colours(images: torch.Tensor) -> None:
    features = gradients_and_colours(images)
    assert features.shape == (6, 7 * CELLS * CELLS)
    assert features.dtype == torch.float32
    assert torch.equal(features, gradients_and_colours(images.double()))
    assert not gradients_and_colours(images.requires_grad_()).requires_grad


def test_figures_are_on_one_scale(images: torch.Tensor) -> None:
    groups = by_cell(gradients_and_colours(images)).transpose(0, 1).flatten(1)
    assert (groups.mean(dim=1).abs() < 0.6).all()
    assert (groups.std(dim=1) > 0.4).all()
    assert (groups.std(dim=1) < 1.6).all()


@pytest.mark.parametrize(("axis", "sign", "strongest"), [(3, 1, 0), (3, -1, 1), (2, 1, 2), (2, -1, 3)])
def test_a_ramp_rises_in_one_direction_only(axis: int, sign: int, strongest: int) -> None:
    ramp = (sign * torch.linspace(-1, 1, 32)).view([32 if axis == place else 1 for place in range(4)])
    rises = by_cell(gradients_and_colours(ramp.expand(1, 3, 32, 32)))[0, :4]
    others = [direction for direction in range(4) if direction != strongest]
    assert (rises[strongest] > 1).all()
    assert torch.allclose(rises[others], rises[others].min())
    assert (rises[others] < -1).all()


def test_half_a_turn_exchanges_directions_and_cells(images: torch.Tensor) -> None:
    plain = by_cell(gradients_and_colours(images))
    turned = by_cell(gradients_and_colours(torch.from_numpy(rotated(images.numpy(), 180))))
    assert torch.allclose(turned.flip(2, 3)[:, [1, 0, 3, 2, 4, 5, 6]], plain, atol=1e-3)


def test_contrast_does_not_change_the_gradients(images: torch.Tensor) -> None:
    plain, strong = (by_cell(gradients_and_colours(scale * images)) for scale in (1, 3))
    assert torch.allclose(plain[:, :4], strong[:, :4], atol=1e-4)
    assert torch.allclose(3 * plain[:, 4:], strong[:, 4:], atol=1e-4)


def test_colours_are_means_of_cells() -> None:
    image = torch.zeros(1, 3, 30, 30)
    image[0, 1, :5, 5:10] = 2
    colours = by_cell(gradients_and_colours(image))[0, 4:]
    assert colours[1, 0, 1] == 2
    assert colours.sum() == 2


def test_an_image_of_one_colour_has_finite_features() -> None:
    assert gradients_and_colours(torch.full((2, 3, 32, 32), 0.7)).isfinite().all()


def test_cifar10_shows_them_to_discriminators(cifar_npz: Path) -> None:
    task = Cifar10(cifar_npz)
    x = torch.from_numpy(task.data(0).test.x)
    assert torch.equal(task.features(x), gradients_and_colours(x))


def test_other_tasks_show_what_their_models_take() -> None:
    task = Digits()
    x = torch.from_numpy(task.data(0).train.x)
    assert torch.equal(task.features(x), x.reshape(len(x), 64))
    assert task.features(x.double()).dtype == torch.float32
