"""Aggregations: how group managers combine the models that members trained in parallel.

The table is shared by the top server, which names an aggregation, and by group managers, which import its code.
"""

from dataclasses import dataclass

from fedgsp.means.ida import INTRAC, IdaOptions
from fedgsp.means.robust import TrimOptions
from fedgsp.optimizers import AUTO, SGD
from fedgsp.parts import Part, Parts
from fedgsp.scoring import ACCURACY

_HERE = "group_manager.aggregation_classes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation(Part):
    """The declaration of an aggregation.

    Its `code` is a subclass of `group_manager.aggregation_classes.Aggregation`.
    """

    #: Whether a scheme may name it whose groups relay. Such groups have one model, so that it has no effect there.
    beside_relay: bool = False
    #: Whether a few models, whatever they are, cannot move the result far.
    robust: bool = False
    #: Whether members count as the scheme's weighing says.
    weighs: bool = True
    #: Whether the result depends on the model that the members started from, which the group manager then gets.
    needs_start: bool = False


AGGREGATIONS: Parts[Aggregation] = Parts(
    "aggregation",
    {
        "mean": Aggregation(
            help="the mean, weighted by the scheme's weighing", code=f"{_HERE}:WeightedMean", beside_relay=True
        ),
        "fednova": Aggregation(
            help="each update is divided by its number of local steps",
            code=f"{_HERE}:FedNova",
            needs_start=True,
            needs={"optimizer": (AUTO, SGD)},
        ),
        "median": Aggregation(
            help="the median of every coordinate", code=f"{_HERE}:Median", robust=True, weighs=False
        ),
        "trimmed-mean": Aggregation(
            help="the mean of every coordinate without its extreme values",
            code=f"{_HERE}:TrimmedMean",
            options=TrimOptions,
            robust=True,
            weighs=False,
        ),
        "ida": Aggregation(
            help="the mean, in which models far from the plain mean count less",
            code=f"{_HERE}:InverseDistance",
            options=IdaOptions,
            needs_of_task=lambda options: (ACCURACY,) if options.times == INTRAC else (),
        ),
    },
    Aggregation,
)
