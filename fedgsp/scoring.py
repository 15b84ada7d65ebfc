"""How the metrics of several clients become one figure, and which figure rates a model.

A task declares both (`Task.combine`, `Task.score`). The declarations travel when a node joins, so that the top server
can combine and rate without running code of the task.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

ACCURACY, LOSS = "accuracy", "loss"
CLASS_COUNTS, CLASS_LABELS = "class counts", "class labels"
ONE_OUTPUT = "a model that returns one tensor"
_COLUMNS = """
    round groups sampled_groups clients_trained clients_skipped accuracy loss clients_evaluated seconds bytes_direct
    bytes_relayed bytes_travelled cpd_median t_comp_s t_comm_s d_comm_bytes accuracy_per_client partition metrics
    metrics_per_client scored_by score score_per_client validation ipr rsd
"""
#: The columns of the history. A metric of one of these names could not be a column beside them.
COLUMNS = frozenset(_COLUMNS.split())
#: What schemes may need of a task, and a task may lack.
LACKS = frozenset((ACCURACY, CLASS_COUNTS, CLASS_LABELS, ONE_OUTPUT))
#: Most metrics of a client that are read, and most declarations.
MOST_METRICS = 256
#: The largest figure that counts, of either sign. Larger ones overflow where figures are added, squared or drawn.
MOST_FIGURE = 1e100

Floats: TypeAlias = NDArray[np.float64]


def is_figure(value: float) -> bool:
    """Whether a number that a client tells can count: NaN, infinity and larger numbers than any figure do not."""
    return abs(value) <= MOST_FIGURE


def as_figure(value: float) -> float | None:
    """A number that was computed of figures: None if it cannot count, as where they were added, or by rounding."""
    return value if is_figure(value) else None


class Figure(NamedTuple):
    """One metric of one client: its value, or numerator and denominator of a ratio, and the client's test samples."""

    value: float
    denominator: float
    samples: int

    @property
    def is_finite(self) -> bool:
        """Whether it can be combined with those of other clients."""
        return is_figure(self.value) and is_figure(self.denominator)


class Way(NamedTuple):
    """A way to combine the values of a metric."""

    #: Of values, denominators and numbers of test samples, each of shape (clients,).
    of: Callable[[Floats, Floats, Floats], np.floating | float]
    #: Whether metrics() returns a pair (numerator, denominator) in place of a number.
    ratio: bool = False


SAMPLES, RATIO = "samples", "ratio"
WAYS: Mapping[str, Way] = {
    # exact for means over samples, such as the mean absolute error
    SAMPLES: Way(lambda values, _, samples: np.average(values, weights=samples)),
    # for figures that exist only by client, such as an area under a curve
    "clients": Way(lambda values, _, __: values.mean()),
    # exact for the root mean squared error
    "root-mean-square": Way(lambda values, _, samples: np.sqrt(np.average(values**2, weights=samples))),
    # exact for F1, recall, Dice and IoU
    RATIO: Way(lambda values, denominators, _: values.sum() / denominators.sum(), ratio=True),
    # for counts
    "sum": Way(lambda values, _, __: values.sum()),
}


@dataclass(frozen=True, slots=True)
class Scoring:
    """What a task declares about its figures."""

    #: The figure that rates a model: a metric, `accuracy` or `loss`, after a minus sign if smaller values are better.
    score: str = ACCURACY
    #: Metric -> a name in `WAYS`; other metrics are combined by `SAMPLES`.
    combine: Mapping[str, str] = field(default_factory=dict)

    def combined(self, metric: str, figures: Iterable[Figure]) -> float | None:
        """One figure for several clients; None if it is not a finite number.

        Figures that are not finite, and those of clients without samples, do not count.
        """
        known = [one for one in figures if one.is_finite and one.samples]
        if not known:
            return None
        values, denominators, samples = np.array(known, np.float64).T
        with np.errstate(all="ignore"):
            return as_figure(float(WAYS[self.combine.get(metric, SAMPLES)].of(values, denominators, samples)))

    def score_of(self, figures: Iterable[Figure]) -> float | None:
        """The score of figures of several clients, of the metric behind it; larger is better."""
        return rated(self.score, self.combined(metric_of(self.score), figures))

    def own(self, metric: str, figure: Figure) -> float:
        """The metric of one client as people read it; NaN if it does not count, or has the denominator 0."""
        ratio = WAYS[self.combine.get(metric, SAMPLES)].ratio
        if not figure.is_finite or (ratio and not figure.denominator):
            return math.nan
        found = figure.value / figure.denominator if ratio else figure.value
        return found if is_figure(found) else math.nan


class Answer(Protocol):
    """What a client has counted of a model: labels that were judged, right ones among them, samples and losses."""

    @property
    def correct(self) -> int: ...  # noqa: D102 (as in `fedgsp.messages.Evaluated`)
    @property
    def judged(self) -> int: ...  # noqa: D102
    @property
    def samples(self) -> int: ...  # noqa: D102
    @property
    def loss_sum(self) -> float: ...  # noqa: D102


def accuracy_of(answers: Iterable[Answer]) -> float | None:
    """The accuracy over all samples; None if no label was judged.

    A client with more labels per sample counts no more than its samples do.
    """
    judged = [one for one in answers if one.judged]
    if not judged:
        return None
    right = (one.correct if one.judged == one.samples else one.samples * one.correct / one.judged for one in judged)
    return sum(right) / sum(one.samples for one in judged)


def loss_of(answers: Iterable[Answer]) -> float | None:
    """The mean loss over all samples; None without samples, or if it is too large to count.

    Clients whose loss is too large to count, or is no finite number, are left out, with their samples.
    """
    counted = [one for one in answers if is_figure(one.loss_sum)]
    samples = sum(one.samples for one in counted)
    return as_figure(sum(one.loss_sum for one in counted) / samples) if samples else None


def taken_by(metric: str) -> str | None:
    """What a name stands for already, so that no metric of a task may have it; None if a metric may."""
    if metric in (ACCURACY, LOSS):
        return "every task has"
    return "is a column of the history" if metric in COLUMNS else None


def metric_of(score: str) -> str:
    """The figure behind a score, such as `mae` of `-mae`."""
    return score.removeprefix("-")


def larger_is_better(score: str) -> bool:
    """Whether larger values of the figure behind a score are better."""
    return not score.startswith("-")


def rated(score: str, value: float | None) -> float | None:
    """The score of a model by the value of the figure behind it: a larger score is always better.

    None if there is no such value, or if it is too large to count, or is no finite number.
    """
    if value is None or not is_figure(value):
        return None
    return value if larger_is_better(score) else -value
