"""Schedules: how the step size changes, from round to round or from step to step of one training.

The code of a schedule is a pure function of its options, a position and a horizon, `(options, position, horizon) ->
factor`: positions count from 0 and are below the horizon, and the factor, above 0 and at most 1, is multiplied with
the learning rate. Built-in schedules begin with the same warm-up.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedgsp.errors import ConfigError
from fedgsp.parts import Part, Parts
from fedgsp.settings.fields import setting

CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(Part):
    """The declaration of a schedule."""

    #: Whether the factors depend on where the horizon is, which must then be known.
    ends: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """Options of every built-in schedule."""

    warmup: int = setting(0, "rounds, or steps, in which the step size grows to its full value", least=0)
    horizon: int | None = setting(
        None,
        "number of rounds, or steps, that the schedule is for; by default, --local-schedule takes the steps of a"
        " training",
        least=1,
    )

    def __post_init__(self) -> None:
        if self.horizon is not None and self.warmup >= self.horizon:
            raise ValueError(f"warmup is {self.warmup}, and horizon {self.horizon}")


@dataclass(frozen=True, slots=True)
class FallingOptions(ScheduleOptions):
    """Options of schedules that fall to a final value."""

    final: float = setting(0.0, "factor on the step size at the horizon", least=0, most=1)


@dataclass(frozen=True, slots=True)
class StepOptions(ScheduleOptions):
    """Options of schedule `step`."""

    every: int = setting(10, "rounds, or steps, after which the step size falls", least=1)
    factor: float = setting(0.1, "factor by which it falls", above=0, most=1)


def constant(_options: ScheduleOptions, _position: int, _horizon: int) -> float:
    """1."""
    return 1.0


def step(options: StepOptions, position: int, _horizon: int) -> float:
    """factor^floor(p / every), with p counted from the end of the warm-up."""
    return float(options.factor ** ((position - options.warmup) // options.every))


def linear(options: FallingOptions, position: int, horizon: int) -> float:
    """1 - (1 - final) q, where q is the passed share of the way from the end of the warm-up to the horizon."""
    return 1 - (1 - options.final) * _passed(options, position, horizon)


def cosine(options: FallingOptions, position: int, horizon: int) -> float:
    """final + (1 - final) (1 + cos(pi q)) / 2 (I. Loshchilov and F. Hutter, ICLR 2017, eq. 5, without restarts)."""
    share = (1 + math.cos(math.pi * _passed(options, position, horizon))) / 2
    return options.final + (1 - options.final) * share


def _passed(options: FallingOptions, position: int, horizon: int) -> float:
    return (position - options.warmup) / (horizon - options.warmup)


SCHEDULES: Parts[Schedule] = Parts(
    "schedule",
    {
        CONSTANT: Schedule(help="the same step size", code=constant, options=ScheduleOptions),
        "step": Schedule(help="falls by a factor every so often", code=step, options=StepOptions),
        "linear": Schedule(help="falls in a straight line", code=linear, options=FallingOptions, ends=True),
        "cosine": Schedule(help="falls along half a wave of a cosine", code=cosine, options=FallingOptions, ends=True),
    },
    Schedule,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule with its options."""

    schedule: Schedule
    options: Any

    @property
    def horizon(self) -> int | None:
        """The horizon that was given; None if none was."""
        return getattr(self.options, "horizon", None)

    def factor(self, position: int, length: int) -> float:
        """The factor at a position, from 0, for a course of so many positions unless the horizon was given.

        Raises ConfigError at or beyond the horizon, and for a factor of outside code that no step size may have.
        """
        horizon, warmup = self.horizon or max(length, position + 1), getattr(self.options, "warmup", 0)
        if position >= horizon:
            raise ConfigError(
                f"round or step {position + 1} is beyond the horizon {horizon} of schedule {self.schedule.name}",
                "give a larger horizon",
            )
        if position < warmup:
            return (position + 1) / (warmup + 1)
        with self.schedule.guard():
            found = float(self.schedule.load()(self.options, position, horizon))
        if not 0 < found <= 1:
            raise ConfigError(
                f"{self.schedule} gives the factor {found:g}", "correct it: factors are above 0, at most 1"
            )
        return found


def plan(name: str, given: Mapping[str, str]) -> Plan:
    """The schedule of that name with these options; raises ConfigError for an unknown name or a wrong option."""
    schedule = SCHEDULES[name]
    return Plan(schedule, schedule.read(given))
