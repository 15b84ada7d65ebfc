"""The check of each kind."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.contracts.decisions import check_grouping, check_growth, check_merge, check_schedule, check_weighing
from tests.contracts.placing import check_place
from tests.contracts.running import (
    check_aggregation,
    check_optimizer,
    check_outgoing,
    check_profile,
    check_program,
    check_task,
    check_training,
)
from tests.contracts.tracking import check_tracker

CHECKS: dict[str, Callable[[str], Coroutine[Any, Any, None]]] = {
    "aggregation": check_aggregation,
    "grouping": check_grouping,
    "growth": check_growth,
    "merge": check_merge,
    "optimizer": check_optimizer,
    "place": check_place,
    "outgoing": check_outgoing,
    "profile": check_profile,
    "program": check_program,
    "schedule": check_schedule,
    "task": check_task,
    "tracker": check_tracker,
    "training": check_training,
    "weighing": check_weighing,
}
