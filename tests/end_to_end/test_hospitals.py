"""A node per hospital, each with no other's file; and what the page on deployment says of the result can be done."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgsp.settings.run import NodeSettings
from tests.support.cluster import Finished, play, settings
from tests.support.reference import assert_same_bits
from tests.support.user_modules import started_in
from top_server.record.model_files import load

ROOT = Path(__file__).parents[2]
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
TASK = "heart_disease:Hospitals"


@pytest.fixture(autouse=True)
def examples() -> Iterator[None]:
    with started_in(ROOT / "examples"):
        yield


@pytest.fixture
def everybody(tmp_path: Path) -> Path:
    """A folder with all four files."""
    folder = tmp_path / "everybody"
    folder.mkdir()
    for number, hospital in enumerate(HOSPITALS):
        rng = np.random.default_rng(number)
        rows = np.column_stack([rng.normal(size=(40, 13)), rng.integers(0, 5, 40)])
        np.savetxt(folder / f"processed.{hospital}.data", rows, delimiter=",", fmt="%.3f")
    return folder


def node(folder: Path, *clients: int) -> NodeSettings:
    """A node whose hospitals' data, and what they keep to themselves, are in this folder."""
    return NodeSettings(
        top_server="",
        task=TASK,
        task_option={"data": str(folder)},
        clients=",".join(map(str, clients)),
        state_dir=folder / "state",
        name=f"hospital-{min(clients)}",
        allow={"reveal": "exact"},
    )


def nodes(everybody: Path) -> list[NodeSettings]:
    """One per hospital, in a folder with nothing but its own file."""
    found = []
    for client, hospital in enumerate(HOSPITALS):
        own = everybody.parent / hospital
        own.mkdir()
        shutil.copy(everybody / f"processed.{hospital}.data", own)
        found.append(node(own, client))
    return found


async def play_hospitals(folder: Path, hosts: list[NodeSettings], **changes: Any) -> Finished:
    several = {"task": TASK, "task_option": {}, "min_nodes": len(hosts), "keep_models": "last"}
    return await play(settings(folder, **{**several, **changes}), hosts)


def as_the_page_says(folder: Path, run: Finished, block: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a block of the page's Python comes to, where a run lies beside the data and the state of client 1."""
    here = folder / "here"
    here.mkdir()
    (here / "run").symlink_to(run.directory.path)
    (here / "data").symlink_to(folder / HOSPITALS[1])
    (here / "state").symlink_to(folder / HOSPITALS[1] / "state")
    monkeypatch.chdir(here)
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(found[block], names)
    return names


def accuracy(names: dict[str, Any], client: int) -> float:
    part = names["task"].data(client).test
    with torch.inference_mode():
        outputs = names["model"](torch.from_numpy(part.x))
    return float((outputs.argmax(dim=1).numpy() == part.y).mean())


async def test_hospitals_that_have_only_their_own_files_come_to_the_same_model_which_can_be_loaded(
    tmp_path: Path, everybody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = await play_hospitals(tmp_path / "together", [node(everybody, 0, 1, 2, 3)], rounds=1)
    apart = await play_hospitals(tmp_path / "apart", nodes(everybody), rounds=1)
    digest = hashlib.sha256((ROOT / "examples" / "heart_disease.py").read_bytes()).hexdigest()
    told = {(event["task_digest"], event["differs_from"]) for event in apart.of_kind("node_joined")}
    assert told == {(digest[:16], None)}
    # The folders of the hospitals are their own matter; what must be equal is recorded, although nobody gave it.
    assert apart.of_kind("run_started")[0]["task_options"] == {"hidden": "16", "test_share": "0.2", "seed": "0"}
    final = load(apart.directory.models / "final.safetensors")[0]
    assert_same_bits(final, load(together.directory.models / "final.safetensors")[0])
    names = as_the_page_says(tmp_path, apart, 0, monkeypatch)
    assert_same_bits({name: tensor.numpy() for name, tensor in names["model"].state_dict().items()}, final)
    assert len(names["risks"]) == 8


@pytest.mark.parametrize("alpha", ["0", "1000000"])
async def test_a_hospitals_head_and_its_groups_model_make_the_model_that_the_run_evaluated(
    tmp_path: Path, everybody: Path, monkeypatch: pytest.MonkeyPatch, alpha: str
) -> None:
    hcct = {"scheme": "hcct-p", "grouping_option": {"alpha": alpha}, "learning_rate": 0.1}
    run = await play_hospitals(tmp_path / "run", nodes(everybody), rounds=2, **hcct)
    last = json.loads(run.directory.history.read_text().splitlines()[-1])
    assert len(last["partition"]) == (4 if alpha == "0" else 1)
    names = as_the_page_says(tmp_path, run, 1, monkeypatch)
    assert accuracy(names, 1) == last["accuracy_per_client"]["1"]
    assert load(names["path"])[1].clients == ((1,) if alpha == "0" else (0, 1, 2, 3))
