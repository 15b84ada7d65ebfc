"""What holds for every experiment."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmarks import sweep

EXPERIMENTS = Path(__file__).parents[2] / "benchmarks" / "experiments"


def experiments() -> dict[str, dict[str, Any]]:
    found = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in EXPERIMENTS.glob("*.toml")}
    return {name: document for name, document in found.items() if "variants" in document}


@pytest.mark.parametrize("name", sorted(experiments()))
def test_distances_are_measured_before_others_use_them(name: str) -> None:
    variants = experiments()[name]["variants"]
    file = "{out}/distances-{seed}/distances.json"
    order = list(variants)
    users = [name for name, given in variants.items() if given.get("profile_option", {}).get("distances") == file]
    assert all(order.index("distances") < order.index(user) for user in users)


@pytest.mark.parametrize("name", sorted(experiments()))
def test_the_settings_of_every_variant_can_be_read(name: str, tmp_path: Path) -> None:
    document = experiments()[name]
    for variant in document["variants"]:
        sweep.check(sweep.settings_of(document, variant, 0, None, {}, tmp_path), tmp_path / variant)
