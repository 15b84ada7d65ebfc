"""The table of checks: what each line is about, and who judges it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from fedgsp.errors import UserError
from fedgsp.report import Line, State, failed
from fedgsp_node.check import certificates, connection, machine, orders, task
from fedgsp_node.check.facts import Facts, Unchecked
from fedgsp_node.check.finding import Finding, good


@dataclass(frozen=True, slots=True)
class Check:
    """One line: the field of Facts that it is about, and the pure function that judges a value of it."""

    fact: str
    judge: Callable[[Any, Facts], Finding]


def _as_said(words: str, facts: Facts) -> Finding:
    return good(words)


#: Name of a line -> its check, in the order of the report.
CHECKS: dict[str, Check] = {
    "own certificate": Check("own", certificates.judge_own),
    "proxy": Check("proxy", connection.judge_proxy),
    "address": Check("reached", connection.judge_reached),
    "server certificate": Check("shown", certificates.judge_shown),
    "top server": Check("answered", connection.judge_answered),
    "versions": Check("answered", connection.judge_versions),
    "clocks": Check("answered", connection.judge_clocks),
    "manager ports": Check("manager", connection.judge_manager),
    "network": Check("pace", connection.judge_pace),
    "policy": Check("policy", _as_said),
    "device": Check("device", _as_said),
    "task": Check("task", task.judge_task),
    "data": Check("data", task.judge_data),
    "model": Check("model", task.judge_model),
    "disk": Check("disk", machine.judge_disk),
    "memory": Check("memory", machine.judge_memory),
    "peer port": Check("peer", _as_said),
    "admission": Check("admission", connection.judge_admission),
    "task file": Check("admission", connection.judge_task_file),
    "orders": Check("orders", orders.judge_orders),
}
#: The lines about the task alone, for `fedgsp.check`.
OF_TASK = ("task", "data", "model")
#: An error of one fact that several lines are about stands in the first of them; the others refer to it.
_FIRST = {check.fact: name for name, check in reversed(CHECKS.items())}


def lines(facts: Facts, names: Collection[str] = tuple(CHECKS)) -> list[Line]:
    """The lines of these names for all that is known; things that are not there have none."""
    found = (line(name, facts) for name in CHECKS if name in names)
    return [one for one in found if one is not None]


def line(name: str, facts: Facts) -> Line | None:
    """The line of this name; None if there is no such thing here."""
    check = CHECKS[name]
    match facts.of(check.fact):
        case None:
            return None
        case Unchecked(because):
            return Line(name, State.UNCHECKED, because)
        case UserError() if _FIRST[check.fact] != name:
            return Line(name, State.UNCHECKED, f"see {_FIRST[check.fact]}")
        case UserError() as error:
            return failed(name, error)
        case value:
            return Line(name, *check.judge(value, facts))
