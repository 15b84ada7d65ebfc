"""What a node declares of its task when it joins: what rates a model, and what the task lacks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedgsp.errors import TaskError
from fedgsp.messages import Failure
from fedgsp.scoring import ACCURACY, LOSS, metric_of
from fedgsp.task import Task


@dataclass(frozen=True, slots=True)
class Declared:
    """What a node declares of its task."""

    #: A metric, accuracy or loss, after a minus sign if smaller values are better.
    score: str = ACCURACY
    #: Metric -> how the values of several clients become one.
    combine: Mapping[str, str] = field(default_factory=dict)
    #: Of `fedgsp.scoring.LACKS`.
    lacks: tuple[str, ...] = ()
    #: The error by which the task has no class counts; None if it has them, or simply has none.
    class_counts_failed: Failure | None = None


def declared(task: Task, lacks: set[str], metrics: set[str], class_counts_failed: Failure | None = None) -> Declared:
    """What a task declares that lacks this, and whose metrics() returned these names for some samples.

    Raises TaskError if `score` names something that is not there.
    """
    default = f"-{LOSS}" if ACCURACY in lacks else ACCURACY
    score = task.score or default
    metric = metric_of(score)
    if metric == ACCURACY and ACCURACY in lacks:
        raise TaskError(
            f"the task's score is {score!r}, and correct() finds no accuracy",
            "override correct(), or name another score, such as '-loss'",
        )
    known = sorted({*metrics, *task.combine})
    if metric not in (ACCURACY, LOSS, *known):
        returned = f"metrics() returned {', '.join(known)}" if known else "metrics() returned no metrics"
        raise TaskError(
            f"the task's score is {score!r}, and for two samples {returned}",
            f"name one of these, {ACCURACY} or -{LOSS}; where a metric needs more samples, let metrics() return NaN",
        )
    return Declared(score, dict(task.combine), tuple(sorted(lacks)), class_counts_failed)
