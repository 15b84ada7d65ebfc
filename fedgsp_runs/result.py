"""What a run has recorded, for Python."""

from __future__ import annotations

import contextlib
import html
import numbers
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgsp.errors import ConfigError, DataError, valid
from fedgsp.files import parse_json, read_file
from fedgsp.scoring import COLUMNS
from fedgsp.settings.checks import check_name
from fedgsp.settings.recorded import load_recorded
from fedgsp.settings.run import RunConfig
from fedgsp.task import Task
from fedgsp.tasks import TASKS
from fedgsp.visible import visible
from fedgsp.words import counted
from fedgsp_runs.places import in_place_of, made_in_its_place
from fedgsp_runs.sums import Sums, sums_of
from fedgsp_runs.values import directory_of, shown
from fedgsp_runs.words import in_python, reworded
from top_server.record.damage import naming_damage
from top_server.record.directory import RunDirectory
from top_server.record.history import lines_of, read_lines

if TYPE_CHECKING:
    import pandas as pd
    import torch


@dataclass(frozen=True)
class Picture:
    """An image in a file, which a notebook shows."""

    path: Path

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


class Run:
    """A run in its directory, finished or not. What it reads raises UserError if the record is damaged."""

    def __init__(self, directory: Path | str, task: Task | str | None = None) -> None:
        """`task` is an instance of the run's task, or its name, such as "clinics:Clinics".

        Without it, `model` loads only tasks of FedGSP and of installed packages: a record alone does not decide which
        code runs. Raises ConfigError if the directory holds no run.
        """
        self.directory = directory_of(directory, "directory")
        self._files = RunDirectory(self.directory)
        if task is not None and not isinstance(task, Task | str):
            raise ConfigError(f"`task` is {shown(task)}", "give an instance of the run's task, or its name")
        self._task = task
        if not any(file.is_file() for file in (self._files.config, self._files.events, self._files.history)):
            raise ConfigError(
                f"{self.directory} holds no run", "give the directory of a run, such as runs/TIME-SCHEME"
            )

    @cached_property
    def settings(self) -> RunConfig:
        """All settings, with those that were chosen for the number of clients; DataError if the file is damaged."""
        return load_recorded(self._files.config)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events, one dictionary each (docs/events.md)."""
        return read_lines(self._files.events)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The history: one dictionary for each round."""
        return read_lines(self._files.history)

    @property
    def history(self) -> pd.DataFrame:
        """The history: one row for each round, with `round` as index. Metrics of the task are columns of their own.

        Nodes refuse metrics with names of other columns; a record that has some anyway has them as `metrics/NAME`.
        Those of single clients, of which a row may have megabytes, are only in `rows`.
        """
        rows = []
        with naming_damage(self.directory):
            for row in lines_of(self._files.history):
                for part in (row, row.get("validation") or {}):
                    part.pop("metrics_per_client", None)
                metrics = row.pop("metrics", None) or {}
                named = {f"metrics/{name}" if name in COLUMNS else name: value for name, value in metrics.items()}
                rows.append({**row, **named})
            return frame(rows).set_index("round") if rows else frame(rows)

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of each client at the end (summary.json); empty if the run has none."""
        try:
            found = parse_json(read_file(self._files.summary))
            valid(isinstance(found, dict), "it is no object")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise DataError(f"{self._files.summary} cannot be read: {error}", "restore the file") from None
        return found  # type: ignore[no-any-return]

    @property
    def score(self) -> float | None:
        """What rates the models, after the last evaluated round: the accuracy, or the score of the task."""
        return self.sums().score

    @property
    def skipped(self) -> int:
        """How many trainings of clients are in no result; `client_skipped` and `group_failed` have the reasons."""
        return self.sums().skipped

    def sums(self) -> Sums:
        """What all rows of the history say together, as far as the run has come."""
        with naming_damage(self.directory):
            return sums_of(self._files)

    @in_python()
    def model(
        self, client: int | None = None, name: str = "final", *, state_dir: Path | str | None = None
    ) -> dict[str, torch.Tensor]:
        """The state of a model, for `load_state_dict` of the task's model: name -> tensor.

        `client` chooses the model of a client where groups or clients have different ones. `name` is a file of
        `models/` without its ending, such as "round-0003" or "best". `state_dir` is the folder of the client's node,
        with the heads and personal models that stayed there. Raises UserError if there is no such model, and warns if
        the model is not the one that the run has evaluated.
        """
        import tempfile

        from safetensors.torch import load_file

        from fedgsp_node.finished.export import export
        from fedgsp_node.finished.record import read
        from fedgsp_node.kept.personal_state import PersonalState

        if client is not None and not isinstance(client, numbers.Integral):
            raise ConfigError(f"`client` is {client!r}", "give the number of a client")
        folder = None if state_dir is None else directory_of(state_dir, "state_dir").absolute()
        if folder is not None and not folder.is_dir():
            raise ConfigError(f"`state_dir` {folder}: there is no such folder", "give that of the client's node")
        run, notes = read(self.directory.absolute()), list[str]()
        file = run.model(name, client)
        task = self.task
        with tempfile.TemporaryDirectory() as aside, in_place_of(task):
            out = Path(aside) / "model.safetensors"
            export(
                run,
                task,
                file,
                out,
                client=client,
                personal=None if folder is None else PersonalState(folder, read_only=True),
                merge_adapters=False,
                tell=notes.append,
            )
            state = dict(load_file(out))
        for note in notes:
            warnings.warn(visible(reworded(note)), stacklevel=3)  # the line that called this method
        return state

    @property
    def task(self) -> Task:
        """An instance of the run's task; a class of a notebook or a script is in a module of the directory."""
        if self._task is None or isinstance(self._task, str):
            trusted = self._task
            self._task = made_in_its_place(lambda: self._loaded(trusted))
        return self._task

    def _loaded(self, trusted: str | None) -> Task:
        """The run's task by its name; ConfigError if that is code, and not the name that is `trusted`."""
        from fedgsp_node.tasks import load_task

        name, where = self.settings.task, f"the run in {self.directory}"
        if trusted is not None and trusted != name:
            raise ConfigError(f"`task` is {trusted!r}, and {where} is one of task {name!r}", "give that of the run")
        if ":" not in name:
            check_name("task", name, TASKS)
            return load_task(name, self.settings.task_option)
        if trusted is None:
            remedy = f"if you trust that code, give Run(DIRECTORY, task={name!r}), or an instance of the task"
            raise ConfigError(f"{where} has the task {name}, whose code is not FedGSP's", remedy)
        with _imports_from(self.directory.resolve()):
            return load_task(name, self.settings.task_option)

    @in_python()
    def picture(self, out: Path | str | None = None) -> Picture:
        """Draws the run into a PNG file, by default `run.png` in its directory; a notebook shows it."""
        from top_server.pictures.run import draw

        target = Path(out or self.directory / "run.png")
        draw(self.directory, target)
        return Picture(target)

    @in_python()
    def report(self, out: Path | str | None = None) -> Path:
        """Writes the report of the run, by default `report.html` in its directory; returns its path."""
        from top_server.report.page import write

        target = Path(out or self.directory / "report.html")
        write([self.directory], target)
        return target

    def __repr__(self) -> str:
        sums = self.sums()
        told = "" if sums.score is None else f", score {sums.score:.4f}"
        scheme = visible(self.settings.scheme)
        told += f", {counted(sums.skipped, 'training')} skipped" if sums.skipped else ""
        return f"<Run {self.directory}: {scheme}, {sums.rounds} of {self.settings.rounds} rounds{told}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def warned(found: Run, progress: bool) -> Run:
    """The same run, with a warning of what a caller who saw no progress could miss: skipped trainings, no score.

    The warning names the line that called `run`, `resume` or `extend`.
    """
    if progress:
        return found
    told, sums = [], found.sums()
    if sums.skipped:
        reason = _last_reason(found, "client_skipped", "group_failed")
        told.append(f"{counted(sums.skipped, 'training')} skipped, the last one because: {reason}")
    if sums.rounds and not sums.evaluated:
        told.append(f"no round was evaluated: {_last_reason(found, 'not_evaluated')}")
    elif sums.rounds and sums.score is None and sums.scored_by:
        told.append(f"no round has the score {sums.scored_by!r}: {_last_reason(found, 'metric_left_out')}")
    if told:
        warnings.warn(f"{found.directory}: {'; '.join(told)}", stacklevel=4)
    return found


def _last_reason(found: Run, *kinds: str) -> str:
    """The reason in the last event of these kinds, in a form that a terminal can show."""
    reason = "see events.jsonl"
    for event in lines_of(RunDirectory(found.directory).events):  # they may be millions
        if event.get("event") in kinds and "reason" in event:
            reason = str(event["reason"])
    return visible(reworded(reason))


@contextlib.contextmanager
def _imports_from(folder: Path) -> Iterator[None]:
    """Within, modules are imported from a folder, too."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """The rows as a table."""
    import pandas as pd  # takes most of a second

    return pd.DataFrame(rows)
