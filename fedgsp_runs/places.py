"""The working directories of tasks: code that changes it opens files there later, and the caller's stays."""

import contextlib
from collections.abc import Callable, MutableMapping
from pathlib import Path
from weakref import WeakKeyDictionary

from fedgsp.task import Task

#: Where the process was after a task of this class had changed the directory: a module is imported once in a process,
#: and a later task of the class does not change it again.
_PLACES: MutableMapping[type[Task], Path] = WeakKeyDictionary()


def made_in_its_place(make: Callable[[], Task]) -> Task:
    """The task that `make` returns; afterwards the working directory is what it was before."""
    with contextlib.chdir("."):
        before = Path.cwd()
        task = make()
        if (after := Path.cwd()) != before:
            _PLACES[type(task)] = after
    return task


def in_place_of(task: Task) -> contextlib.AbstractContextManager[None]:
    """Inside the context, the working directory is the one to which the task has changed it, if it has."""
    return contextlib.chdir(_PLACES.get(type(task), Path()))
