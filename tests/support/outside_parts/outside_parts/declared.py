"""The declarations, which every process may import: no torch, and no code of a part that another process runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedgsp.aggregations import Aggregation
from fedgsp.optimizers import Optimizer
from fedgsp.outgoing import Step
from fedgsp.parts import Part
from fedgsp.programs import Program
from fedgsp.schedules import Schedule
from fedgsp.settings.fields import setting
from fedgsp.trainings import Training
from top_server.grouping.base import Grouping
from top_server.merging.weighing import Weighing
from top_server.placing.base import Place
from top_server.tracking.base import Tracker


@dataclass(frozen=True, slots=True)
class BySizeOptions:
    """Options of grouping `by-size`."""

    members: int = setting(2, "number of clients in each group", least=1)


@dataclass(frozen=True, slots=True)
class SizeOptions:
    """Options of profile `sizes`."""

    scale: float = setting(1.0, "factor on the numbers of samples", above=0)


@dataclass(frozen=True, slots=True)
class SlowMeanOptions:
    """Options of merge `slow-mean`."""

    share: float = setting(0.5, "share of the way to the mean of a round", above=0, most=1)


@dataclass(frozen=True, slots=True)
class PowerOptions:
    """Options of weighing `power`."""

    power: float = setting(0.5, "power of the number of samples", least=0)


@dataclass(frozen=True, slots=True)
class ClipOptions:
    """Options of aggregation `clipped-mean`."""

    most: float = setting(1.0, "largest change of a coordinate", above=0)


@dataclass(frozen=True, slots=True)
class SomeOptions:
    """Options of program `parallel-some`."""

    members: int = setting(2, "number of members that train, drawn in every round", least=1)


@dataclass(frozen=True, slots=True)
class SignedOptions:
    """Options of training `signed-sgd`."""

    shrink: float = setting(1.0, "factor on the step size from one epoch to the next", above=0, most=1)


@dataclass(frozen=True, slots=True)
class DynamicOptions:
    """Options of training `feddyn`."""

    alpha: float = setting(0.1, "strength of the dynamic regulariser", above=0)


@dataclass(frozen=True, slots=True)
class SignsOptions:
    """Options of optimiser `signs`."""

    dead: float = setting(0.0, "gradients up to this size make no step", least=0)


@dataclass(frozen=True, slots=True)
class RootOptions:
    """Options of schedule `root`."""

    power: float = setting(0.5, "power by which the step size falls", above=0)


@dataclass(frozen=True, slots=True)
class ShortenedOptions:
    """Options of outgoing step `shortened`."""

    share: float = setting(0.5, "share of an update that leaves the node", above=0, most=1)


@dataclass(frozen=True, slots=True)
class CountedOptions:
    """Options of place `counted`."""

    prefix: str = setting("", "what stands before the number")


@dataclass(frozen=True, slots=True)
class LinesOptions:
    """Options of tracker `lines`."""

    to: Path | None = setting(None, "the file; lines.jsonl in the run directory by default")
    digits: int = setting(6, "digits of each figure", least=0)


BY_SIZE = Grouping(
    help="clients with alike numbers of samples",
    code="outside_parts.grouping:by_size",
    options=BySizeOptions,
    needs={"profile": ("sizes",)},
)
BROKEN = Grouping(help="raises an exception", code="outside_parts.grouping:broken")
SIZES = Part(help="numbers of samples as evidence", code="outside_parts.profile:Sizes", options=SizeOptions)
FAILING = Part(help="raises an exception", code="outside_parts.profile:Failing")
FAILING_MERGE = Part(help="raises an exception", code="outside_parts.merge:FailingMerge", options=SlowMeanOptions)
SLOW_MEAN = Part(
    help="one model that moves a share of the way to the mean",
    code="outside_parts.merge:SlowMean",
    options=SlowMeanOptions,
)
POWER = Weighing(help="a power of the samples", code="outside_parts.weighing:power", options=PowerOptions)
CLIPPED_MEAN = Aggregation(
    help="the mean of clipped updates",
    code="outside_parts.aggregation:ClippedMean",
    options=ClipOptions,
    needs_start=True,
)
FAILING_MEAN = Aggregation(help="raises an exception", code="outside_parts.aggregation:FailingMean")
PARALLEL_SOME = Program(
    help="some members train at once, and their models are averaged",
    code="outside_parts.program:run",
    options=SomeOptions,
    for_schemes=True,
    trains=True,
    makes_model=True,
    aggregates=True,
    needs_start=True,
    takes_own_starts=True,
    needs_training=True,
)
SIGNED_SGD = Training(
    help="SGD with a shrinking step size", code="outside_parts.training:SIGNED_SGD", options=SignedOptions
)
DYNAMIC = Training(
    help="FedDyn",
    code="outside_parts.training:DYNAMIC",
    options=DynamicOptions,
    keeps_tensors=True,
    pull=lambda options: options.alpha,
)
UNDECLARED = Training(help="keeps what it does not declare", code="outside_parts.training:UNDECLARED")
FAILING_SGD = Training(help="raises an exception", code="outside_parts.training:FAILING_SGD")
SIGNS = Optimizer(help="steps of one size", code="outside_parts.optimizer:signs", options=SignsOptions)
NO_OPTIMIZER = Optimizer(help="makes none", code="outside_parts.optimizer:nothing")
ROOT = Schedule(help="falls with the root of the position", code="outside_parts.schedule:root", options=RootOptions)
SHORTENED = Step(
    help="only a share of each update leaves the node",
    code="outside_parts.outgoing:shorten",
    options=ShortenedOptions,
    needs_start=True,
)
COUNTED = Place(
    help="on this machine, where workers are counted", code="outside_parts.place:Counted", options=CountedOptions
)
LINES = Tracker(help="lines of JSON", code="outside_parts.tracker:Lines", options=LinesOptions)
