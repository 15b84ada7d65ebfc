"""What a run will order of clients, as far as that is known before its first round.

`fedgsp-node check` compares it with the policy of a node. Otherwise the owner of the node would learn from the first
round that the policy refuses all that is ordered.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedgsp.aggregations import AGGREGATIONS
from fedgsp.encoding import BFLOAT16
from fedgsp.ida import INTRAC
from fedgsp.messages import Reveal, Train, TrainingSettings
from fedgsp.settings.run import RunConfig
from top_server.optimization import optimizer_settings
from top_server.outgoing import outgoing_steps
from top_server.profiles import PROFILES
from top_server.profiles.options import DistanceOptions, UpdateOptions
from top_server.schemes import Scheme

#: Profile -> the kinds of work that it asks for beside trainings, as `Policy.work` lists them.
_WORK: Mapping[str, tuple[str, ...]] = {
    "histograms": ("describe",),
    "distances": ("discriminate",),
    "losses": ("evaluate-training",),
    "training-accuracy": ("evaluate-training",),
    "prior-losses": ("evaluate-training",),
    "prior-distances": ("evaluate-training", "compare"),
    "model-distances": ("compare",),
}


class Asked(NamedTuple):
    """A training as the first round orders it, without a start; and the other kinds of work that a run asks for."""

    training: Train
    work: tuple[str, ...] = ()


def asked(config: RunConfig, scheme: Scheme) -> Asked:
    """What a run with these settings will order."""
    options = PROFILES[scheme.profile].read(scheme.given("profile"))
    settings = TrainingSettings(
        scheme.training,
        config.local_epochs,
        config.batch_size,
        config.learning_rate_in(1),
        config.seed,
        scheme.given("training"),
        config.wire_dtype == BFLOAT16,
        optimizer_settings(config, scheme),
    )
    training = Train(None, "", settings, _revealed(options), outgoing=outgoing_steps(config, scheme))
    work = {"evaluate", *_WORK.get(scheme.profile, ())}
    if isinstance(options, DistanceOptions) and options.distances is not None:
        work.discard("discriminate")
    if getattr(AGGREGATIONS[scheme.aggregation].read(scheme.given("aggregation")), "times", "") == INTRAC:
        work.add("evaluate-training")
    return Asked(training, tuple(sorted(work)))


def _revealed(options: Any) -> Reveal | None:
    """What clients reveal of their updates in the first round."""
    return Reveal(options.first_view) if isinstance(options, UpdateOptions) else None
