"""The summaries under docs/results/data: EXPERIMENT/VARIANT-SEED.json, and models beside them."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.results.code import ROOT, Code, machine_here
from benchmarks.results.runs import digests, final_models
from benchmarks.results.summary import Summary, of_run
from benchmarks.results.text import to_text
from fedgsp.errors import ConfigError, DataError
from fedgsp.settings.files import load
from fedgsp.settings.run import RunConfig
from top_server.record.directory import RunDirectory

DATA = ROOT / "docs" / "results" / "data"
#: Models of a run that are larger in all are not kept, bytes.
MOST_BYTES = 2_000_000
_NAME = re.compile(r"[\w.+=,-]+")


def check_name(name: str) -> None:
    """Raises ConfigError unless an experiment or a variant of this name can have files."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a name", "use letters, digits and . + = , _ -")


def keep(run: Path, experiment: str, variant: str, code: Code, data: Path = DATA, weights: bool = False) -> Path:
    """Writes the summary of a finished run, and with `weights` its final models; returns the file of the summary.

    `code` is what the run executed. Raises UserError if the run is not finished, or if the models are too large.
    """
    for name in (experiment, variant):
        check_name(name)
    found = of_run(run)
    names = {"experiment": experiment, "variant": variant, "seed": found["seed"]}
    path = _path(run, experiment, variant, data)
    if weights:
        keep_models(run, experiment, variant, data)
    path.parent.mkdir(parents=True, exist_ok=True)
    played_with = machine_here(found["settings"]["device"])
    path.write_text(to_text({**names, "code": asdict(code), "with": played_with, **found}), encoding="utf-8")
    return path


def keep_models(run: Path, experiment: str, variant: str, data: Path = DATA) -> list[Path]:
    """Copies the final models of a finished run beside its summary; returns the files. ConfigError for large ones."""
    models = final_models(RunDirectory(run))
    size = sum(model.stat().st_size for model in models)
    if size > MOST_BYTES:
        raise ConfigError(
            f"the final models of {run} have {size} bytes, and {MOST_BYTES} are kept", "leave out --weights"
        )
    path = _path(run, experiment, variant, data)
    path.parent.mkdir(parents=True, exist_ok=True)
    return [shutil.copyfile(model, path.with_name(f"{path.stem}.{model.name}")) for model in models]


def is_kept(run: Path, experiment: str, variant: str, data: Path = DATA) -> bool:
    """Whether the summary of a finished run is there, with the same models."""
    path = _path(run, experiment, variant, data)
    return path.exists() and read(path)["models"] == digests(RunDirectory(run))


def _path(run: Path, experiment: str, variant: str, data: Path) -> Path:
    """The file of the summary of a run."""
    return data / experiment / f"{variant}-{load(RunConfig, RunDirectory(run).config).seed}.json"


def read(path: Path) -> dict[str, Any]:
    """A summary; DataError if the file is missing or holds none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = found["experiment"], found["settings"], found["models"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no summary of a run ({error})", "make it with `keep`") from None
    return found


class Kept:
    """The summaries in a folder, each read once. `read` has experiments that are not in files."""

    def __init__(self, data: Path = DATA, read: dict[str, dict[str, dict[int, Summary]]] | None = None) -> None:
        self._data = data
        self._read = read or {}

    def runs(self, experiment: str, variant: str) -> dict[int, Summary]:
        """The summaries of a variant by seed, ascending; empty if there are none."""
        return self.variants(experiment).get(variant, {})

    def variants(self, experiment: str) -> dict[str, dict[int, Summary]]:
        """All summaries of an experiment: variant -> seed -> summary."""
        if experiment not in self._read:
            found: dict[str, dict[int, Summary]] = {}
            for path in sorted((self._data / experiment).glob("*.json")):
                one = read(path)
                found.setdefault(one["variant"], {})[one["seed"]] = one
            self._read[experiment] = {name: dict(sorted(runs.items())) for name, runs in found.items()}
        return self._read[experiment]
