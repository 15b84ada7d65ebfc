"""What a run will order of clients, as far as that is known before its first round.

`fedgsp-node check` compares it with the policy of a node. Otherwise the owner of the node would learn from the first
round that the policy refuses all that is ordered.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fedgsp.aggregations import AGGREGATIONS
from fedgsp.means.ida import INTRAC
from fedgsp.messages import Results, Reveal, Train
from fedgsp.settings.run import RunConfig
from top_server.merging import MERGES
from top_server.optimization import training_settings
from top_server.outgoing import outgoing_steps
from top_server.profiles import PROFILES
from top_server.profiles.options import DistanceOptions, PriorOptions, UpdateOptions
from top_server.schemes import Scheme

#: Profile -> the kinds of work that it asks for beside trainings, as `Policy.work` lists them.
WORK: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "histograms": ("describe",),
    "updates": (),
    "distances": ("discriminate",),
    "losses": ("evaluate-training",),
    "training-accuracy": ("evaluate-training",),
    "prior-losses": ("evaluate-training",),
    "prior-distances": ("evaluate-training", "compare"),
    "prior-models": (),
    "model-distances": ("compare", "retain"),
}


class Asked(NamedTuple):
    """What is known of the orders of a run."""

    #: Its trainings, as the first round orders them, without a start. Empty: not known.
    trainings: tuple[Train, ...] = ()
    #: The other kinds of work that it asks for, or may ask for.
    work: tuple[str, ...] = ()


def asked(config: RunConfig, scheme: Scheme) -> Asked:
    """What a run with these settings will order; nothing if its profile is of another package."""
    if scheme.profile not in WORK:
        return Asked()
    options = PROFILES[scheme.profile].read(scheme.given("profile"))
    settings, steps = training_settings(config, scheme, 1), outgoing_steps(config, scheme)
    trainings = [Train(None, "", settings, _revealed(options), outgoing=steps)]
    if isinstance(options, PriorOptions):
        settings = training_settings(config, scheme, 1, "sgd", options.epochs(config))
        trainings.append(Train(None, "", settings, outgoing=steps, aside=True))
    return Asked(tuple(trainings), tuple(sorted(set(_work(config, scheme, options)))))


def _work(config: RunConfig, scheme: Scheme, options: Any) -> Iterator[str]:
    yield "evaluate"
    if config.initial_model is None:
        yield "initialise"
    measured = isinstance(options, DistanceOptions) and options.distances is not None
    yield from () if measured else WORK[scheme.profile]
    if getattr(AGGREGATIONS[scheme.aggregation].read(scheme.given("aggregation")), "times", "") == INTRAC:
        yield "evaluate-training"
    # A client that is alone in its group keeps its model on its node.
    if getattr(MERGES[scheme.merge].load(), "alone", None) is Results.RETAINED:
        yield "retain"


def _revealed(options: Any) -> Reveal | None:
    """What clients reveal of their updates in the first round."""
    return Reveal(options.first_view) if isinstance(options, UpdateOptions) else None
