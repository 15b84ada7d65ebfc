"""The summary of a finished run: what tables and pictures need of it, in some KiB."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results.runs import digests, finished, samples
from benchmarks.results.settings import kept
from fedgsp.errors import ConfigError
from fedgsp.settings.files import load
from fedgsp.settings.run import RunConfig
from top_server.grouping.request import ranges
from top_server.pictures.shown import recorded_alone
from top_server.profiles.distance_file import Distance, read_file
from top_server.record.directory import RunDirectory
from top_server.record.figures import summarise
from top_server.record.history import plain, read_lines

Rows = list[dict[str, Any]]
Summary = Mapping[str, Any]

#: Columns of the history with a value for each evaluated round.
STATES = ("accuracy", "loss", "clients_evaluated", "groups", "sampled_groups", "cpd_median", "ipr", "rsd")
#: Columns that add up. A value is the sum since the evaluated round before.
SUMS = (
    "clients_trained",
    "clients_skipped",
    "seconds",
    "bytes_direct",
    "bytes_relayed",
    "t_comp_s",
    "t_comm_s",
    "d_comm_bytes",
)
#: Distances between more clients than this are left out: the matrix would be larger than all the rest.
MOST_CLIENTS = 60


def of_run(path: Path) -> dict[str, Any]:
    """Settings and results of a finished run; ConfigError if it is not finished, DataError for damaged files."""
    directory, results = RunDirectory(path), results_of(path)
    config = load(RunConfig, directory.config)
    settings, files = kept(config, _base(read_lines(directory.events)))
    return {
        "seed": config.seed,
        "settings": settings,
        "files": files,
        **results,
        "distances": _distances(directory),
        "models": digests(directory),
    }


def results_of(path: Path) -> dict[str, Any]:
    """The part of a summary that tables and pictures of runs need; raises as `of_run`."""
    if not finished(path):
        raise ConfigError(f"{path} holds no finished run", "wait for its end, or continue it with --resume")
    directory = RunDirectory(path)
    rows, events = read_lines(directory.history), read_lines(directory.events)
    return {
        "rounds": rows[-1]["round"],
        "history": columns(rows),
        "totals": {name: sum(row.get(name) or 0 for row in rows) for name in SUMS},
        "clients": clients(rows, recorded_alone(directory), samples(events)),
        "partitions": partitions(rows),
    }


def began(path: Path) -> datetime:
    """When the run in a directory began."""
    return datetime.fromisoformat(read_lines(RunDirectory(path).events)[0]["time"])


def columns(rows: Rows) -> dict[str, list[Any]]:
    """A list for each column that the history has, with a value for each evaluated round."""
    found: dict[str, list[Any]] = {"round": []}
    since: dict[str, float] = dict.fromkeys(SUMS, 0)
    for row in rows:
        for name in SUMS:
            since[name] += row.get(name) or 0
        if row.get("accuracy") is None:
            continue
        each = (row.get("accuracy_per_client") or {}).values()
        values = {name: row.get(name) for name in STATES} | {"mean": float(np.mean(list(each))) if each else None}
        for name, value in {"round": row["round"], **values, **since}.items():
            found.setdefault(name, []).append(value)
        since = dict.fromkeys(SUMS, 0)
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def clients(rows: Rows, alone: Mapping[int, float], trained_on: Mapping[int, int]) -> dict[str, Any]:
    """Figures of each client, in lists of the same order: null where a client has none."""
    served = summarise(rows)
    last = dict(served["last"]["per_client"]) if served else {}
    best = dict(served["best"]["per_client"]) if served else {}
    metrics: dict[str, Any] = next(
        (row["metrics_per_client"] for row in reversed(rows) if row.get("metrics_per_client")), {}
    )
    by_name: dict[str, Mapping[int, Any]] = {"samples": trained_on, "last": last, "best": best, "alone": alone}
    for name, values in metrics.items():
        by_name[f"metric {name}"] = {int(client): value for client, value in values.items()}
    numbers = sorted({client for values in by_name.values() for client in values})
    lists = {name: [values.get(client) for client in numbers] for name, values in by_name.items() if values}
    evaluated = {"last_evaluated": served["last"]["round"]} if served else {}
    return {"client": numbers, **lists, **evaluated}


def partitions(rows: Rows) -> dict[str, str]:
    """The groups of each round that has other groups than the round before, such as `0-4 5,7`, by round."""
    found: dict[str, str] = {}
    before = ""
    for row in rows:
        groups = row.get("partition")
        if groups and (now := " ".join(ranges(group) for group in sorted(map(sorted, groups)))) != before:
            found[str(row["round"])] = before = now
    return found


def _distances(directory: RunDirectory) -> dict[str, Any]:
    if not directory.distances.exists():
        return {}
    found = read_file(directory.distances)
    clients = sorted(found.sizes)
    if len(clients) > MOST_CLIENTS:
        return {}
    same, unknown = Distance(0.0, 0.0), Distance(math.nan, math.nan)
    pairs = [
        [same if one == other else found.known.get((one, other), unknown) for other in clients] for one in clients
    ]
    return {
        "clients": clients,
        "sizes": [found.sizes[client] for client in clients],
        "matrix": plain(np.array([[pair.found for pair in row] for row in pairs])),
        "errors": plain(np.array([[pair.error for pair in row] for row in pairs])),
    }


def _base(events: Rows) -> Path:
    """Where relative paths in the settings begin."""
    return Path(next(event["directory"] for event in events if event["event"] in ("run_started", "run_resumed")))
