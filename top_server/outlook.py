"""What the groups of a run will be, in plain words, and what is doubtful about them; told before the first round."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedgsp.programs import PROGRAMS
from fedgsp.settings.run import RunConfig
from fedgsp.words import counted
from top_server.choosing import counts_groups
from top_server.grouping import GROUPINGS
from top_server.grouping.round_size import sample_size, shape_for
from top_server.profiles import PROFILES
from top_server.schemes import Scheme
from top_server.sizes import groups_wanted, sampling_rate

#: Ranges of rounds that are told; in a longer run the first ones and the last one.
MOST_TOLD = 4


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rounds in a row with the same groups, where the grouping is told how many groups to make."""

    first: int
    last: int
    groups: int
    #: Groups that train in each of these rounds.
    train: int
    #: Members of the smallest and of the largest group.
    fewest: int
    most: int
    #: Clients in no group in these rounds.
    idle: int

    @property
    def trained(self) -> float:
        """How many clients train in a round, on average."""
        members = (self.fewest + self.most) / 2 if self.most > self.fewest else self.fewest
        return self.train * members

    @property
    def rounds(self) -> str:
        """The rounds in words."""
        return _rounds(self.first, self.last)


def stretches(config: RunConfig, scheme: Scheme, clients: int) -> list[Stretch]:
    """The rounds of a run with `clients` clients, if its grouping makes as many groups as it is told."""
    mode = getattr(GROUPINGS[scheme.grouping].read(scheme.given("grouping")), "mode", "exact")
    numbers = [
        groups_wanted(config, scheme, 1 if scheme.regroup == "never" else number, clients)
        for number in range(1, config.rounds + 1)
    ]
    found, begin = [], 1
    for wanted, rounds in itertools.groupby(numbers):
        last = begin + len(list(rounds)) - 1
        groups, members = shape_for(clients, wanted, mode)
        rest = clients - groups * members
        train = sample_size(groups, sampling_rate(config)) if scheme.sampling == "groups" else groups
        larger = mode == "all" and rest > 0
        found.append(Stretch(begin, last, groups, train, members, members + larger, 0 if larger else rest))
        begin = last + 1
    return found


def outlook(config: RunConfig, scheme: Scheme, clients: int) -> str:
    """How many groups there will be in the rounds of a run, and how many clients train in each."""
    if scheme.service:
        return f"as the grouping service at {scheme.service} forms them"
    if scheme.sampling == "clients" and scheme.grouping == "single":
        drawn = sample_size(clients, sampling_rate(config))
        if drawn < clients:
            return f"1 in every round, of {drawn} of the {counted(clients, 'client')}, drawn anew"
    if scheme.grouping == "single":
        return f"1 in every round, of {_all(clients)}"
    if scheme.grouping == "singletons":
        return f"none; every client trains alone{_models(scheme, ', for one or more of ')}"
    if not counts_groups(scheme) or scheme.sampling == "clients":
        return f"{GROUPINGS[scheme.grouping].help}{_models(scheme, '; in all ')}"
    told = stretches(config, scheme, clients)
    shown: Sequence[Stretch] = told if len(told) <= MOST_TOLD else [*told[: MOST_TOLD - 1], told[-1]]
    texts = [f"{one.groups} {one.rounds}" for one in shown]
    if len(shown) < len(told):
        texts.insert(-1, "...")
    trained = {one.train for one in told}
    everybody = all(one.train == one.groups for one in told)
    training = _from_to(min(trained), max(trained))
    some = f"{training} of them {'trains' if training == '1' else 'train'} in a round"
    share = "all of them train" if everybody else some
    members = _from_to(min(one.fewest for one in told), max(one.most for one in told))
    return f"{', '.join(texts)}; {share}, with {members} {'client' if members == '1' else 'clients'} in each"


def doubts(config: RunConfig, scheme: Scheme, clients: int) -> Iterator[str]:
    """What is probably not wanted about the groups of a run, each with the flags that change it."""
    if clients < 2 or scheme.service:
        return
    if scheme.sampling == "clients":
        drawn = sample_size(clients, sampling_rate(config))
        yield from _never(clients, config.rounds, clients * math.prod([1 - drawn / clients] * config.rounds))
        return
    if not counts_groups(scheme):
        return
    told = stretches(config, scheme, clients)
    if alone := [one for one in told if one.fewest == 1]:
        what = (
            "so that no model is relayed" if PROGRAMS[scheme.program].chained else "which learns from no other client"
        )
        which = "every group is a single client" if alone[0].most == 1 else "some groups are single clients"
        when = _rounds(alone[0].first, alone[-1].last)
        yield f"{when} {which}, {what}: give --smallest-group 2, or leave out --beta"
    if scheme.regroup == "never" and told[0].idle:
        yield (
            f"{counted(told[0].idle, 'client')} will be in no group in the whole run: give --grouping-option mode=all"
        )
    if scheme.sampling == "groups":
        missed = clients * math.prod((1 - one.trained / clients) ** (one.last - one.first + 1) for one in told)
        yield from _never(clients, config.rounds, missed)


def _never(clients: int, rounds: int, missed: float) -> Iterator[str]:
    if missed >= 1:
        yield (
            f"about {round(missed)} of {clients} clients will train in none of the {counted(rounds, 'round')}:"
            " give --sampling-rate 1, or more --rounds"
        )


def _models(scheme: Scheme, before: str) -> str:
    """The number of cluster models after the text `before`; empty if the scheme has none."""
    models = getattr(PROFILES[scheme.profile].read(scheme.given("profile")), "models", None)
    return "" if models is None else f"{before}{counted(models, 'model')}"


def _rounds(first: int, last: int) -> str:
    if first == last:
        return f"in round {first}"
    return f"in rounds {first} {'and' if last == first + 1 else 'to'} {last}"


def _all(clients: int) -> str:
    return counted(clients, "client") if clients == 1 else f"all {clients} clients"


def _from_to(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"
