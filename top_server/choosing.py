"""Makes the choices of a run: the row of its scheme, with the parts and options that the settings replace."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from fedgsp.aggregations import AGGREGATIONS
from fedgsp.errors import ConfigError
from fedgsp.messages import Additions, TensorSpec
from fedgsp.optimizers import AUTO, OPTIMIZERS, RELAYED
from fedgsp.outgoing import OUTGOING
from fedgsp.parts import Part, Parts
from fedgsp.programs import PROGRAMS
from fedgsp.schedules import CONSTANT, SCHEDULES, plan
from fedgsp.settings.checks import Names, flag
from fedgsp.settings.fields import described, str_of_client
from fedgsp.settings.run import GROUPING_SERVICE, RunConfig
from fedgsp.settings.run_files import BEST
from fedgsp.tasks import TASKS
from fedgsp.tensors.additions import clash
from fedgsp.tensors.relayed_state import PREFIX
from fedgsp.trainings import TRAININGS
from top_server.grouping import GROUPINGS
from top_server.grouping.round_size import GROWTHS
from top_server.merging import MERGES
from top_server.merging.weighing import WEIGHINGS
from top_server.optimization import check_optimizer, check_schedules
from top_server.outgoing import check_outgoing
from top_server.placing import PLACES
from top_server.profiles import PROFILES
from top_server.schemes import SCHEMES, Scheme
from top_server.sizes import PAPER
from top_server.tracking import TRACKERS

#: The tables of the parts that a scheme consists of. If several choices do not fit, the error names the first kind.
TABLES: Mapping[str, Parts[Any]] = {
    "merge": MERGES,
    "grouping": GROUPINGS,
    "aggregation": AGGREGATIONS,
    "program": PROGRAMS,
    "training": TRAININGS,
    "optimizer": OPTIMIZERS,
    "weighing": WEIGHINGS,
    "profile": PROFILES,
}
#: Setting -> the names that it may take.
NAMES: Names = {
    **TABLES,
    "scheme": SCHEMES,
    "growth": GROWTHS,
    "task": TASKS,
    "outgoing": OUTGOING,
    "schedule": SCHEDULES,
    "local_schedule": SCHEDULES,
    "track": TRACKERS,
    "place": PLACES,
}
#: Columns of a scheme that a setting of the same name replaces.
_REPLACED = (*TABLES, "growth", "after_arrivals")


def choose(config: RunConfig) -> Scheme:
    """The row of the scheme with the choices that settings replace; raises ConfigError if choices do not fit."""
    row = SCHEMES[config.scheme]
    chosen = {name: value for name in _REPLACED if (value := getattr(config, name)) is not None}
    if chosen.get("grouping", "").startswith(GROUPING_SERVICE):
        chosen["service"] = chosen.pop("grouping").removeprefix(GROUPING_SERVICE)
    if config.relay_order is not None:
        chosen["shuffle"] = config.relay_order == "drawn"
    scheme = dataclasses.replace(row, **chosen)
    scheme = dataclasses.replace(scheme, options=_options(config, row, scheme))
    GROWTHS[scheme.growth].load()  # one of a broken package is refused now
    _check_needs(config, scheme)
    check_schedules(config)
    for wrong, what, remedy in _refusals(config, scheme):
        if wrong:
            raise ConfigError(what, remedy)
    _check_options(config, scheme)
    return scheme


def counts_groups(scheme: Scheme) -> bool:
    """Whether the grouping is told how many groups to make. (A grouping service may make as many as it likes.)"""
    return GROUPINGS[scheme.grouping].counted or bool(scheme.service)


def parts_of(scheme: Scheme) -> dict[str, Part]:
    """The parts that a scheme consists of, by kind."""
    return {kind: table[getattr(scheme, kind)] for kind, table in TABLES.items()}


def _options(config: RunConfig, row: Scheme, scheme: Scheme) -> dict[str, dict[str, str]]:
    """The options of each kind of part: those of the row, if its part is not replaced, and over them the settings'."""
    found = {}
    for kind in TABLES:
        stays = getattr(scheme, kind) == getattr(row, kind) and not (kind == "grouping" and scheme.service)
        given = {**(row.given(kind) if stays else {}), **getattr(config, f"{kind}_option")}
        if given:
            found[kind] = given
    return found


def _check_needs(config: RunConfig, scheme: Scheme) -> None:
    # A choice by kind and name, the kind of the choice that it needs, and the names that fit.
    needs = [
        (kind, part.name, other, needed)
        for kind, part in parts_of(scheme).items()
        for other, needed in part.needs.items()
    ]
    if not AGGREGATIONS[scheme.aggregation].beside_relay and not PROGRAMS[scheme.program].aggregates:
        needs.append(("aggregation", scheme.aggregation, "program", ("parallel",)))
    for column, value, other, needed in needs:
        if getattr(scheme, other) in needed:
            continue
        fitting = [
            name
            for name, row in SCHEMES.built_in.items()
            if getattr(row, column) == value and getattr(row, other) in needed
        ]
        if getattr(SCHEMES[config.scheme], other) in needed:
            remedy = f"leave out {flag(other)}"
        elif fitting:
            remedy = f"use scheme {' or '.join(fitting)}"
        else:
            remedy = f"give {flag(other)} {' or '.join(needed)}"
        raise ConfigError(
            f"{column} {value} needs {other} {' or '.join(needed)},"
            f" and scheme {config.scheme} has {getattr(scheme, other)}",
            remedy,
        )


def _refusals(config: RunConfig, scheme: Scheme) -> Iterator[tuple[bool, str, str]]:
    """What a run must not have: whether this run has it, what is wrong about it, and what to do."""
    for name, why in _unread(config, scheme).items() if scheme.sampling == "none" else ():
        # The papers' values, which experiments with several schemes have in all of them, are only warned of.
        yield (
            getattr(config, name) != PAPER.get(name),
            f"{flag(name)} has no effect in scheme {config.scheme}, {why}",
            "give --grouping-option alpha=..." if name == "alpha" else "leave it out",
        )
    yield (
        not config.learning_rate_in(config.rounds) > 0,
        f"the learning rate is 0 before round {config.rounds}",
        "give a --learning-rate-decay nearer to 1",
    )
    yield (
        scheme.aggregation != "mean" and scheme.grouping == "singletons",
        f"aggregation {scheme.aggregation} needs groups of several, and grouping singletons has none",
        f"leave out {flag('grouping' if config.aggregation is None else 'aggregation')}",
    )
    yield (
        AGGREGATIONS[scheme.aggregation].robust and scheme.merge == "none" and not scheme.lasts,
        f"--aggregation {scheme.aggregation} would not protect scheme {config.scheme}, where new groups start"
        " from the weighted mean of their members' models",
        "give --update-norm-limit",
    )
    # A group may rest only if it stays the same in the next round, and no other group changes its model.
    rows = {name: row for name, row in SCHEMES.built_in.items() if row.regroup == "arrivals" and row.merge == "none"}
    choices = {(row.regroup, row.merge, row.grouping) for row in rows.values()}
    yield (
        scheme.after_arrivals == "joined" and (scheme.regroup, scheme.merge, scheme.grouping) not in choices,
        f"--after-arrivals joined needs groups that stay, with a model each; scheme {config.scheme} has others",
        f"use scheme {' or '.join(rows)}",
    )
    yield (
        config.relay_order is not None and not PROGRAMS[scheme.program].chained,
        f"--relay-order is for program relay; in program {scheme.program} the members of a group train at once",
        "leave it out, or use scheme fedgsp",
    )
    yield from _unbalanced(config, scheme)
    training = TRAININGS[scheme.training]
    yield (
        config.keep_models == BEST and (scheme.without_head or training.keeps_head or training.keeps_personal),
        f"--keep-models best: in scheme {config.scheme} clients keep a head or a personal model on their nodes, where"
        " that of the last round takes the place of that of the best round",
        "leave it out; --patience can be used",
    )
    # Neither is defined for tensors that a training adds to the model.
    adds = TRAININGS[scheme.training].adds is not None
    yield (
        adds and scheme.aggregation == "fednova",
        f"aggregation fednova makes a client's steps longer or shorter, and training {scheme.training} learns how"
        " to fuse the features of exactly the model that a client has trained",
        f"leave out {flag('training' if config.aggregation is None else 'aggregation')}",
    )
    yield (
        adds and scheme.without_head,
        f"scheme {config.scheme} keeps the heads with the clients, and training {scheme.training} learns features"
        " for one head of all clients",
        f"leave out {flag('training')}, or use another scheme",
    )


def ignored(config: RunConfig, scheme: Scheme) -> list[str]:
    """A phrase for each setting that was given and has no effect in this scheme."""
    unread = _unread(config, scheme) | _unweighed(config, scheme)
    phrases = [f"{flag(name)} has no effect in scheme {config.scheme}, {why}" for name, why in unread.items()]
    for name in ("schedule", "local_schedule"):
        given = getattr(config, f"{name}_option")
        chosen = plan(getattr(config, name), given)
        if given and chosen.schedule.name == CONSTANT and not chosen.options.warmup:
            which = f"{flag(f'{name}_option')} {' and '.join(given)}"
            phrases.append(f"{which} changes no step size: schedule {CONSTANT} does so in a warmup only")
    return phrases


def _unweighed(config: RunConfig, scheme: Scheme) -> dict[str, str]:
    """The weighing, if it was given and changes no result, and why it does not."""
    if config.weighing is None:
        return {}
    if PROGRAMS[scheme.program].chained:
        return {"weighing": f"whose program {scheme.program} takes no mean over the members of a group"}
    if not WEIGHINGS[scheme.weighing].everybody:
        return {}  # a member of weight 0 is left out, whatever becomes of the others
    if not AGGREGATIONS[scheme.aggregation].weighs:
        return {"weighing": f"in whose aggregation {scheme.aggregation} all members count alike"}
    return {"weighing": "whose groups are single clients"} if scheme.grouping == "singletons" else {}


def _unread(config: RunConfig, scheme: Scheme) -> dict[str, str]:
    """The settings of growth and sampling that were given and that the scheme does not read, and why it does not."""
    counted = counts_groups(scheme)
    read = dict.fromkeys(("beta", "growth", "smallest_group"), counted)
    read |= {"alpha": counted and scheme.growth != "constant", "sampling_rate": scheme.sampling != "none"}
    why = dict.fromkeys(read, "whose number of groups does not grow" if counted else "which grows no groups")
    why["sampling_rate"] = "in which all clients train in every round"
    return {name: why[name] for name in read if not read[name] and getattr(config, name) is not None}


def _unbalanced(config: RunConfig, scheme: Scheme) -> Iterator[tuple[bool, str, str]]:
    """The reasons for which groups cannot be dealt by time."""
    asked, remedy = config.balance is not None, f"leave out {flag('balance')}, or use scheme fedgsp"
    yield (
        asked and bool(scheme.service),
        f"--balance {config.balance} is for groupings of FedGSP, and a grouping service deals clients as it likes",
        f"leave out {flag('balance')}",
    )
    yield (
        asked and not PROGRAMS[scheme.program].chained,
        f"--balance {config.balance} needs program relay: in program {scheme.program} the members of a group train at"
        " once, so that a round takes as long as its slowest client, whatever the groups are",
        remedy,
    )
    yield (
        asked and not GROUPINGS[scheme.grouping].balances,
        f"--balance {config.balance} needs grouping icg, and grouping {scheme.grouping} chooses the members of a group"
        " by other rules",
        remedy,
    )
    yield (
        asked and scheme.regroup != "always",
        f"--balance {config.balance} needs groups that are formed in every round, and scheme {config.scheme} forms"
        " them before any client was measured",
        remedy,
    )


def _check_options(config: RunConfig, scheme: Scheme) -> None:
    parts = parts_of(scheme)
    known = {kind: {one.name for one in described(part.options).values()} for kind, part in parts.items()}
    read = {}
    for kind, part in parts.items():
        if kind == "grouping" and scheme.service:
            continue  # it may have other options
        for name in scheme.given(kind):
            readers = [other for other in TABLES if name.partition(".")[0] in known[other]]
            if readers and kind not in readers:
                remedy = " or ".join(f"{flag(f'{other}_option')} {name}=..." for other in readers)
                raise ConfigError(f"{part} has no option {name!r}", f"give {remedy}")
        try:
            read[kind] = part.read(scheme.given(kind))
        except ConfigError as error:
            if getattr(scheme, kind) != AUTO:
                raise
            raise ConfigError(error.what, f"give {flag(kind)} too, such as sgd; it has no options by itself") from None
    check_outgoing(config, scheme, read["profile"])
    check_optimizer(config, scheme, read["optimizer"])
    if config.initial_model is not None and (models := getattr(read["profile"], "models", 1)) > 1:
        raise ConfigError(
            f"scheme {config.scheme} begins with {models} models that must differ, and --initial-model has one",
            "use another scheme, or leave out --initial-model",
        )
    if scheme.merge == "soft-clusters" and read["merge"].soft > (models := read["profile"].models):
        raise ConfigError(f"option soft is {read['merge'].soft}, and there are {models} models", "lower it")
    training = TRAININGS[scheme.training]
    with training.guard():
        training.check(read["training"], config.learning_rate, config.batch_size)
    # A model would show the one before it to clients that did not have that one: the difference is others' update.
    everywhere = not PROGRAMS[scheme.program].chained and scheme.merge in ("mean", "weighted-mean", "smoothed-mean")
    if scheme.training == "fedfusion" and read["training"].evaluation == "previous" and not everywhere:
        raise ConfigError(
            "training option evaluation=previous sends each model with the one before it, which all clients must have"
            f" had: it needs program parallel and one model, and scheme {config.scheme} has program {scheme.program}"
            f" and merge {scheme.merge}",
            "leave out the option, or use scheme fedfusion",
        )


def check_head(scheme: Scheme, tensors: Collection[TensorSpec]) -> None:
    """Raises ConfigError if heads stay with the clients, and the model has no head or consists only of its head."""
    heads = sum(spec.head for spec in tensors)
    if (scheme.without_head or TRAININGS[scheme.training].keeps_head) and not 0 < heads < len(tensors):
        what = "has no classifier head" if not heads else "is all classifier head"
        raise ConfigError(f"the model {what}, which this scheme keeps with the clients", "set `head` in the task")


def additions(config: RunConfig, scheme: Scheme) -> Additions:
    """What the run adds to the model of the task."""
    adds = TRAININGS[scheme.training].adds is not None
    training = (scheme.training, scheme.given("training")) if adds else ("", {})
    relayed = config.optimizer_state == RELAYED
    return Additions(*training, *((scheme.optimizer, scheme.given("optimizer")) if relayed else ("", {})))


def check_additions(
    scheme: Scheme, features: TensorSpec | None, model: tuple[TensorSpec, ...], tensors: tuple[TensorSpec, ...]
) -> None:
    """Raises ConfigError if the model lacks the features that a training needs, or has names of what is added.

    `tensors` are those of the model with all additions."""
    adds = TRAININGS[scheme.training].adds is not None
    if adds and features is None:
        raise ConfigError(
            f"training {scheme.training} needs the features of the model, and the task names no layer that returns"
            " them",
            "set `extractor` in the task to the name of the layer that returns the features; if it names one, the log"
            " of a node says why that layer does not",
        )
    if name := clash(model, tensors[len(model) :]):
        what = "the state of the optimiser" if name.startswith(PREFIX) else f"training {scheme.training}"
        raise ConfigError(
            f"{what} adds a tensor {name!r}, and the model has one of that name", "rename it in the task"
        )


def absent(scheme: Scheme, clients: Collection[int]) -> list[int]:
    """The clients in the grouping's options that are not present: they were misspelt, or they join later."""
    given = scheme.given("grouping")
    named = {
        int(client)
        for _, dot, client in (name.rpartition(".") for name in given)
        if dot and str_of_client(client) == client
    }
    if not scheme.service:
        grouping = GROUPINGS[scheme.grouping]
        named.update(grouping.names(grouping.read(given)))
    return sorted(named.difference(clients))
