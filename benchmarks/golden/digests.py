"""The record of a finished run that is compared: digests of its models, and some columns of its history."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

#: Columns of the history that depend on neither time nor processes.
COLUMNS = (
    "round",
    "groups",
    "sampled_groups",
    "clients_trained",
    "clients_skipped",
    "accuracy",
    "loss",
    "clients_evaluated",
    "cpd_median",
    "accuracy_per_client",
    "partition",
    "metrics_per_client",
    "ipr",
    "rsd",
)


def tensor_digest(path: Path) -> str:
    """SHA-256 over the tensors of a safetensors file: name, dtype, shape and raw bytes, sorted by name.

    The metadata of the file are left out, because they contain the id of the run. The file is parsed here, so that
    every dtype has a digest, also bfloat16, which numpy does not know.
    """
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header.pop("__metadata__", None)
    digest = hashlib.sha256()
    for name in sorted(header):
        begin, stop = header[name]["data_offsets"]
        # JSON of the description marks where it ends, so that no two files give the digest the same bytes.
        described = [name, header[name]["dtype"], header[name]["shape"], stop - begin]
        digest.update(json.dumps(described).encode() + data[end + begin : end + stop])
    return digest.hexdigest()


def rows(history: Path) -> list[dict[str, Any]]:
    """Every round's values of `COLUMNS`; a column that a row lacks is left out."""
    lines = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
    return [{name: line[name] for name in COLUMNS if name in line} for line in lines]


def record(run: Path) -> dict[str, Any]:
    """Everything that is compared of one run directory."""
    found: dict[str, Any] = {
        "models": {path.name: tensor_digest(path) for path in sorted((run / "models").glob("*.safetensors"))},
        "history": rows(run / "history.jsonl"),
    }
    distances = run / "distances.json"
    if distances.exists():
        found["distances"] = hashlib.sha256(
            json.dumps(json.loads(distances.read_text(encoding="utf-8"))["distances"]).encode()
        ).hexdigest()
    return found


def records(folder: Path) -> dict[str, Any]:
    """Every run directory in `folder` by its name: the run, and the local run that it is compared with."""
    return {path.parent.name: record(path.parent) for path in sorted(folder.glob("*/history.jsonl"))}
