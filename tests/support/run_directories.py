"""Directories of runs whose models are known, as a top server leaves them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgsp.seeds import derive
from fedgsp.settings.files import dump
from fedgsp.settings.run import RunConfig
from fedgsp.task import Task
from fedgsp.tensors.weights import Weights
from fedgsp_node.model.making import model_of
from fedgsp_node.model.torch_weights import constants, digest, weights_of
from top_server.record import model_files

RUN = "abcd1234"


def trained(task: Task, seed: int) -> Weights:
    """A model of the task other than that with which its runs begin."""
    return weights_of(model_of(task, seed), tuple(task.head), tuple(task.constant))


def write(
    folder: Path,
    whole: Task,
    models: Mapping[str, tuple[Weights, Sequence[int]]],
    *,
    finished: bool = True,
    recorded: bool = True,
    **settings: Any,
) -> Path:
    """A run directory with these models by name, each with its clients; `recorded`: with the digests of constants."""
    config = RunConfig(**settings)
    (folder / "models").mkdir(parents=True)
    (folder / "config.toml").write_text(dump(config))
    started: dict[str, Any] = {"event": "run_started", "run": RUN}
    if recorded:
        made = constants(model_of(whole, derive(config.seed, "initial-weights")), tuple(whole.constant))
        started["constants"] = {name: digest(tensor).hex() for name, tensor in made.items()}
    events = [started, *([{"event": "run_finished"}] if finished else [])]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    for name, (weights, clients) in models.items():
        number = int(name.split("-")[1]) if name.startswith("round-") else 3
        origin = model_files.Origin(RUN, config.scheme, number, config.seed, tuple(clients))
        model_files.save(folder / "models" / f"{name}.safetensors", weights.arrays, origin)
    return folder
