"""The blobs, with training that waits at a gate, so that what is to happen within a round does."""

from __future__ import annotations

import dataclasses
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedgsp.settings.run import NodeSettings, RunConfig
from tests.support.blobs_task import Blobs
from tests.support.cluster import nodes, settings
from tests.support.reference_groups import GroupReference

TASK = "tests.support.gated_task:GatedBlobs"
CLIENTS = {"clients": "6"}
#: Whoever trains behind a gate waits until it is set.
GATES: defaultdict[str, threading.Event] = defaultdict(threading.Event)
#: Groups and clients alone in every round but the first.
ALPHA = {"alpha": "1.85"}


class GatedBlobs(Blobs):
    local_options = ("gate",)
    extractor = "2"

    def __init__(self, clients: int = 6, gate: str = "") -> None:
        super().__init__(clients, on_loss=lambda: GATES[gate].wait(60) if gate else None)

    def model(self) -> nn.Module:
        # Neither torch's initial weights nor dropout: nodes in threads of one process share its random numbers.
        module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        rng = np.random.default_rng(0)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.from_numpy(rng.normal(size=tuple(parameter.shape))) * 0.3)
        return module


def oracle(**changes: Any) -> GroupReference:
    """What a run with `gated_settings` must equal, wherever it waits."""
    common: dict[str, Any] = {"rounds": 4, "learning_rate": 0.05, "decay": 0.9, "batch_size": 8, "options": ALPHA}
    return GroupReference(GatedBlobs(), range(6), **{**common, **changes})


def gated_settings(tmp_path: Path, **changes: Any) -> RunConfig:
    """No last batch of one sample, of which there is no variance to normalise by."""
    common: dict[str, Any] = {
        "task": TASK,
        "task_option": CLIENTS,
        "rounds": 4,
        "learning_rate": 0.05,
        "learning_rate_decay": 0.9,
        "batch_size": 8,
        "keep_models": "last",
    }
    return settings(tmp_path / "run", **{**common, **changes})


def host(name: str, *clients: int, gate: str = "", state_dir: Path | None = None) -> NodeSettings:
    """A node; its clients train behind the gate, if it has one."""
    (node,) = nodes(clients)
    options = {**CLIENTS, "gate": gate} if gate else CLIENTS
    changes: dict[str, Any] = {"name": name, "task": TASK, "task_option": options, "state_dir": state_dir}
    return dataclasses.replace(node, **changes)
