"""How this manager runs each in-group program of `fedgsp.programs`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fedgsp.messages import Failure, GroupResult
from group_manager.group import Group
from group_manager.programs import alone, discriminate, parallel, relay, survey

PROGRAMS: dict[str, Callable[[Group], Awaitable[GroupResult | Failure]]] = {
    "relay": relay.run,
    "parallel": parallel.run,
    "alone": alone.run,
    "collect": survey.collect,
    "discriminate": discriminate.run,
    "forget": survey.forget,
    "initialise": survey.initialise,
    **dict.fromkeys(survey.QUESTIONS, survey.ask),
}
