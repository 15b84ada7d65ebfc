"""From settings to choices: the scheme's row with what the settings replace, and each option to whom it is for."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from fedgsp.aggregations import AGGREGATIONS
from fedgsp.errors import ConfigError
from fedgsp.local_training import KEEPS_HEAD, SMALLEST_BATCH, TRAININGS, training_options
from fedgsp.messages import TensorSpec
from fedgsp.programs import PROGRAMS
from fedgsp.settings.checks import Names, flag
from fedgsp.settings.fields import described
from fedgsp.settings.run import GROUPING_SERVICE, RunConfig
from top_server.grouping import GROUPINGS
from top_server.grouping.growth import GROWTHS
from top_server.grouping.options import client_of
from top_server.merging import MERGE_OPTIONS, MERGES
from top_server.merging.soft_clusters import SoftClusters
from top_server.merging.trimming import TRIM_OPTIONS, TRIMMED, read_trim
from top_server.outgoing import UserSteps, check_outgoing
from top_server.profiles import PROFILES
from top_server.schemes import SCHEMES, Scheme

#: Setting -> the names that it may take.
NAMES: Names = {
    "scheme": SCHEMES,
    "growth": GROWTHS,
    "grouping": GROUPINGS,
    "program": [name for name, program in PROGRAMS.items() if program.for_schemes],
    "training": TRAININGS,
    "aggregation": AGGREGATIONS,
    "merge": MERGES,
    "outgoing": UserSteps(),
}

#: What a choice needs of another: column, value, other column, its values. What is neither here nor in the tables of
#: groupings and aggregations goes with everything.
_MERGES_NEED = (
    ("merge", "clusters", "grouping", ("ifca",)),
    ("merge", "centres", "grouping", ("fesem",)),
    ("merge", "centres", "aggregation", ("mean",)),
    ("merge", "soft-clusters", "grouping", ("singletons",)),
    ("merge", "soft-clusters", "profile", ("losses",)),
    # They take means of their own, whatever becomes of a group's models.
    ("merge", "soft-clusters", "aggregation", ("mean",)),
)
_OTHERS_NEED = (
    ("profile", "model-distances", "program", ("parallel",)),
    ("weighing", "fedfa", "program", ("parallel",)),
    ("weighing", "maxfl", "program", ("parallel",)),
    # Else the models that clients choose among are never trained.
    ("profile", "losses", "merge", ("clusters", "soft-clusters")),
    ("profile", "model-distances", "merge", ("centres",)),
)


def choose(config: RunConfig) -> Scheme:
    """The scheme's row with the choices that the settings replace; raises ConfigError for what does not fit."""
    row = SCHEMES[config.scheme]
    chosen = {
        name: value
        for name in ("growth", "grouping", "program", "training", "aggregation", "merge", "after_arrivals")
        if (value := getattr(config, name)) is not None
    }
    if chosen.get("grouping", "").startswith(GROUPING_SERVICE):
        chosen["service"] = chosen.pop("grouping").removeprefix(GROUPING_SERVICE)
    scheme = dataclasses.replace(row, **chosen)
    for column, value, other, needed in _needs():
        if getattr(scheme, column) == value and getattr(scheme, other) not in needed:
            fitting = [
                name
                for name, row in SCHEMES.items()
                if getattr(row, column) == value and getattr(row, other) in needed
            ]
            if config.scheme in fitting:
                remedy = f"leave out {flag(other)}"
            elif fitting:
                remedy = f"use scheme {' or '.join(fitting)}"
            else:
                remedy = f"give {flag(other)} {' or '.join(needed)}"
            needs = f"{column} {value} needs {other} {' or '.join(needed)}"
            raise ConfigError(f"{needs}, and scheme {config.scheme} has {getattr(scheme, other)}", remedy)
    _check_growth(config, scheme)
    _check_aggregation(config, scheme)
    _check_arrivals(config, scheme)
    _check_options(config, scheme)
    _check_training(config, scheme)
    return scheme


def _needs() -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Rows as above, those of the two tables too; of several that are not met the first is told."""
    yield from _MERGES_NEED
    for name, row in GROUPINGS.items():
        for column, value in row.needs.items():
            yield "grouping", name, column, (value,)
    for name, aggregation in AGGREGATIONS.items():
        if not aggregation.beside_relay:
            yield "aggregation", name, "program", ("parallel",)
    yield from _OTHERS_NEED


def _check_growth(config: RunConfig, scheme: Scheme) -> None:
    """Settings that say nothing where everybody trains in every round are mistakes; so is a rate that vanishes."""
    counted = GROUPINGS[scheme.grouping].counted or bool(scheme.service)  # which may make as many as it likes
    read = {"alpha": counted and scheme.growth != "constant", "beta": counted, "growth": counted}
    if scheme.sampling == "none":
        for name in ("alpha", "beta", "growth", "sampling_rate"):
            if getattr(config, name) != described(RunConfig)[name].default and not read.get(name):
                remedy = "give --grouping-option alpha=..." if name == "alpha" else "leave it out"
                raise ConfigError(
                    f"{flag(name)} says nothing in scheme {config.scheme}, which grows no groups", remedy
                )
    if not config.learning_rate_in(config.rounds) > 0:
        raise ConfigError(
            f"the learning rate is 0 before round {config.rounds}", "give a --learning-rate-decay nearer to 1"
        )


def _check_aggregation(config: RunConfig, scheme: Scheme) -> None:
    """Refuses those that would change nothing, or would keep nobody's model from doing harm, though asked for."""
    if scheme.aggregation == "mean":
        return
    if scheme.grouping == "singletons":
        raise ConfigError(
            f"aggregation {scheme.aggregation} needs groups of several, and grouping singletons has none",
            f"leave out {flag('grouping' if config.aggregation is None else 'aggregation')}",
        )
    if AGGREGATIONS[scheme.aggregation].robust and scheme.merge == "none" and not scheme.lasts:
        raise ConfigError(
            f"--aggregation {scheme.aggregation} would not protect scheme {config.scheme}, where new groups start"
            " from the weighted mean of their members' models",
            "give --update-norm-limit",
        )


def _check_arrivals(config: RunConfig, scheme: Scheme) -> None:
    """Groups can only rest whose models nobody else changes, and that are the same in the next round."""
    rows = {name: row for name, row in SCHEMES.items() if row.regroup == "arrivals" and row.merge == "none"}
    choices = {(row.regroup, row.merge, row.grouping) for row in rows.values()}
    if scheme.after_arrivals == "joined" and (scheme.regroup, scheme.merge, scheme.grouping) not in choices:
        raise ConfigError(
            f"--after-arrivals joined needs groups that stay, with a model each; scheme {config.scheme} has others",
            f"use scheme {' or '.join(rows)}",
        )


def _check_training(config: RunConfig, scheme: Scheme) -> None:
    """Refuses options of the training that cannot be, and settings with which nobody would learn anything."""
    given = training_options(scheme.training, config.training_option)
    if scheme.training == "per-fedavg" and config.batch_size < SMALLEST_BATCH:
        raise ConfigError(
            f"--batch-size is {config.batch_size}, and training per-fedavg leaves out batches below {SMALLEST_BATCH}",
            "give a larger one",
        )
    rate = max(config.learning_rate, given.get("personal_rate", 0))
    pull = rate * max(given.get("mu", 0), given.get("lambda", 0))
    if pull >= 2:
        raise ConfigError(
            f"the step size times the pull of training {scheme.training} is {pull:g}: from 2 on it swings ever wider",
            "lower --learning-rate, or mu, lambda or personal_rate of --training-option",
        )


def _check_options(config: RunConfig, scheme: Scheme) -> None:
    """Refuses what --grouping-option cannot say before anybody waits for nodes."""
    given = options(config, scheme)
    chosen = PROFILES[scheme.profile].read(given["profile"])
    check_outgoing(config, scheme, chosen)
    if scheme.merge == "soft-clusters" and SoftClusters.read(given["merge"]) > (models := chosen.models):
        raise ConfigError(f"option soft is {given['merge'].get('soft', 2)}, and there are {models} models", "lower it")
    for kind, trims in (("merge", scheme.merge == TRIMMED), ("aggregation", AGGREGATIONS[scheme.aggregation].trims)):
        if trims:
            read_trim(kind, given[kind])
    if scheme.service:
        return  # it may have others
    try:
        GROUPINGS[scheme.grouping].read(given["grouping"])
    except ConfigError as error:
        read = dict.fromkeys(name for names in _readers(scheme).values() for name in names)
        if not read or " has no option " not in error.what:
            raise
        raise ConfigError(error.what, f"{error.remedy}; scheme {config.scheme} reads {', '.join(read)}") from None


def check_head(scheme: Scheme, tensors: Collection[TensorSpec]) -> None:
    """A scheme that keeps heads with the clients needs a model that has one, and something beside it."""
    heads = sum(spec.head for spec in tensors)
    keeps = scheme.without_head or scheme.training in KEEPS_HEAD
    if keeps and not 0 < heads < len(tensors):
        what = "has no classifier head" if not heads else "is all classifier head"
        raise ConfigError(f"the model {what}, which this scheme keeps with the clients", "set `head` in the task")


def options(config: RunConfig, scheme: Scheme) -> dict[str, dict[str, str]]:
    """The options of --grouping-option, by the part of the scheme that reads them; the grouping has the others."""
    readers = _readers(scheme)
    elsewhere = {name for names in readers.values() for name in names}
    replaced = scheme.service or scheme.grouping != SCHEMES[config.scheme].grouping
    usual = {name: value for name, value in scheme.options.items() if name in elsewhere or not replaced}
    merged = {**usual, **config.grouping_option}
    found = {part: {name: merged[name] for name in merged if name in names} for part, names in readers.items()}
    return {**found, "grouping": {name: value for name, value in merged.items() if name not in elsewhere}}


def absent(scheme: Scheme, given: Mapping[str, str], clients: Collection[int]) -> list[int]:
    """Clients that options of the grouping are for, and that are not there: misspelt, or they come late."""
    named = {client for name in given if (client := client_of(name)) is not None}
    if not scheme.service:
        named.update(GROUPINGS[scheme.grouping].names(given))
    return sorted(named.difference(clients))


def _readers(scheme: Scheme) -> dict[str, tuple[str, ...]]:
    return {
        "profile": PROFILES[scheme.profile].options,
        "merge": MERGE_OPTIONS.get(scheme.merge, ()),
        "aggregation": TRIM_OPTIONS if AGGREGATIONS[scheme.aggregation].trims else (),
    }
