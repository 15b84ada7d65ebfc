from __future__ import annotations

from pathlib import Path

import pytest

from fedgsp.errors import ConfigError
from top_server.placing.ray.options import RayOptions, check


@pytest.mark.parametrize("address", ["auto", "local", "ray://head.example.org:10001", "10.0.0.1:6379", "[::1]:6379"])
def test_an_address_may_be_of_these_kinds(address: str) -> None:
    check(RayOptions(address=address))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (RayOptions(address="head"), "option address of place ray: 'head' is not an address"),
        (RayOptions(address="ray://head"), "option address of place ray: 'head' is not an address"),
        (RayOptions(gpus=1.5), "option gpus of place ray is 1.5, and Ray gives a part of one GPU or whole GPUs"),
        (RayOptions(working_dir=Path("/no/such/folder")), "which is no folder"),
    ],
)
def test_what_ray_would_refuse_is_refused_before(options: RayOptions, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        check(options)


@pytest.mark.parametrize("gpus", [0, 0.25, 1, 2])
def test_parts_of_a_gpu_and_whole_gpus_are_allowed(gpus: float) -> None:
    check(RayOptions(gpus=gpus))
