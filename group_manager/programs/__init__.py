"""In-group programs: what the members of a group do together. One file each, one line here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fedgsp.messages import Failure, GroupResult
from group_manager.group import Group
from group_manager.programs import alone, discriminate, parallel, relay, survey

Program = Callable[[Group], Awaitable[GroupResult | Failure]]

PROGRAMS: dict[str, Program] = {
    "relay": relay.run,
    "parallel": parallel.run,
    "alone": alone.run,
    "collect": survey.collect,
    "compare": survey.compare,
    "describe": survey.describe,
    "discriminate": discriminate.run,
    "distance": survey.distance,
    "evaluate": survey.evaluate,
    "evaluate-training": survey.evaluate_training,
    "forget": survey.forget,
    "initialise": survey.initialise,
}
