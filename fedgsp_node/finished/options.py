"""Compares the options of a task with those that it had on the nodes of a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from fedgsp.errors import ConfigError
from fedgsp.options import MOST_LENGTH, same
from fedgsp.task import Task
from fedgsp_node.finished.record import RunRecord
from fedgsp_node.tasks import options_to_share


def check_options(run: RunRecord, task: Task, given: Mapping[str, str]) -> None:
    """Raises ConfigError if an option of a task has another value than on the nodes of the run.

    config.toml has the options of the top server alone. With another seed, say, the task takes samples for the test
    that clients have trained on. `given` are options that the user has chosen for this command: these may differ.
    """
    here = options_to_share(run.config.task, {**run.config.task_option, **given}, task)
    there = {
        key: value
        for key, value in sorted(run.task_options.items())
        if key in here and key not in given and not same(here[key], value)
    }
    if there:
        raise ConfigError(
            f"the task has {_listed({key: here[key] for key in there})}, and on the nodes of the run it had"
            f" {_listed(there)}",
            f"give {' '.join(f'--task-option {_text(key, value)}' for key, value in there.items())}, or another value"
            " if you want to evaluate on other data",
        )


def _listed(options: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items())


def _text(key: str, value: str) -> str:
    """The option as a shell takes it. Of a long value, the run has recorded only the beginning and a digest."""
    return f"{key}=VALUE" if len(value) >= MOST_LENGTH else shlex.quote(f"{key}={value}")
