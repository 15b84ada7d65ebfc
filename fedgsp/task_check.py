"""`fedgsp.check`: tries a task before any node is started."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from fedgsp.report import Report
from fedgsp.task import Task

#: Module and attribute of the check. A node imports torch, which `import fedgsp` does not.
_CODE = "fedgsp_node.check.work:check"


def check(task: Task, clients: Iterable[int] | None = None) -> Report:
    """Tries a task as a node does when it starts: the data of each client, and the model on two samples of one client.

    `clients` are the clients whose data are read, by default all. Returns the report, which `print` shows. Raises the
    UserError that `fedgsp-node start` would end with (TaskError for the task, DataError for a data file), with the
    words of `fedgsp-node check` and the remedy.
    """
    module, _, name = _CODE.partition(":")
    report: Report = getattr(importlib.import_module(module), name)(task, clients)
    return report
