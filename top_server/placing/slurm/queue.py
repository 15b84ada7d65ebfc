"""What Slurm's queue says of the tasks of a job array, and what has changed since the last look. Pure."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: The fields that squeue is asked for, in this order. A colon and a width would cut long values off.
FIELDS = "ArrayTaskID:|,State:|,Reason:|,NodeList:|,RestartCnt:|,exit_code:|"
#: States that a task does not leave again.
_FINAL = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
#: States in which a task has not begun, or not begun again.
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
#: States -> what they mean for the user; others speak for themselves.
_MEANINGS = {
    "CANCELLED": "its task was cancelled",
    "NODE_FAIL": "its machine is lost",
    "BOOT_FAIL": "its machine did not start",
    "OUT_OF_MEMORY": "it needed more memory than it has: give place option memory",
    "TIMEOUT": "its time limit is over: give place option time",
    "PREEMPTED": "other jobs needed its machine",
}


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a job array, as the queue shows it."""

    state: str
    #: Why it waits; "None" if it does not wait.
    reason: str = "None"
    #: The machine on which it runs or has run.
    machine: str = ""
    restarts: int = 0
    #: The status of wait(2).
    status: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in _FINAL

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a machine."""
        return self.state in _WAITING

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None if its process did not end by itself."""
        return os.waitstatus_to_exitcode(self.status) if self.state in ("COMPLETED", "FAILED") else None

    @property
    def why(self) -> str:
        """Why it has ended, if its exit code does not say it."""
        return "" if self.state in ("COMPLETED", "FAILED") else _MEANINGS.get(self.state, self.state)


@dataclass(frozen=True, slots=True)
class Change:
    """A task has ended, for good or until it is started again."""

    number: int
    code: int | None
    reason: str
    returns: bool = False


#: A task that the queue does not show any more, and whose end was not seen.
FORGOTTEN = Task("FORGOTTEN")


def parse(text: str) -> dict[int, Task]:
    """The tasks by number, from what squeue prints for FIELDS; raises ValueError for anything else."""
    found = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        number, state, reason, machine, restarts, status, *_ = (word.strip() for word in line.split("|"))
        found[int(number)] = Task(state, reason, machine, int(restarts), int(status))
    return found


def changes(before: Mapping[int, Task], now: Mapping[int, Task]) -> list[Change]:
    """The ends of tasks between two looks at the queue. A task that has ended for good is told once."""
    found = []
    for number, was in before.items():
        if was.is_over or was == FORGOTTEN:
            continue
        task = now.get(number, FORGOTTEN)
        if task == FORGOTTEN:
            found.append(Change(number, None, "Slurm does not know its task any more"))
        elif task.is_over:
            found.append(Change(number, task.code, task.why))
        elif task.restarts > was.restarts and not was.is_waiting:
            on = f"on {was.machine} " if was.machine else ""
            found.append(Change(number, None, f"its task {on}was ended and is in the queue again", returns=True))
    return found


def waiting(tasks: Mapping[int, Task]) -> dict[str, list[int]]:
    """The numbers of the tasks that wait, by the reason that the queue gives."""
    found: dict[str, list[int]] = {}
    for number, task in sorted(tasks.items()):
        if task.is_waiting:
            found.setdefault(task.reason, []).append(number)
    return found


def merged(before: Mapping[int, Task], now: Mapping[int, Task], numbers: Iterable[int]) -> dict[int, Task]:
    """The state after a look: a task that has ended keeps its end when the queue forgets it."""
    return {
        number: before[number] if number in before and before[number].is_over else now.get(number, FORGOTTEN)
        for number in numbers
    }
