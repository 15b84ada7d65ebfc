"""Computes the models that a run must have, by an independent implementation that knows who trained with whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from benchmarks.chaos.events import Event
from benchmarks.chaos.kept import Training, states_after
from benchmarks.chaos.plan import KEPT, RELAYED, Plan
from fedgsp.settings.fields import values_of
from fedgsp.task import Task
from fedgsp.trainings import TRAININGS
from fedgsp_node.tasks import load_task
from tests.support.keeping import Keeping
from tests.support.reference import Reference, State, stream, weighted_mean
from tests.support.reference_coalitions import CoalitionReference
from tests.support.reference_groups import GroupReference
from tests.support.relaying import Relaying, model_of

TRAINING = ("relay", "parallel")


@dataclass(slots=True)
class Told:
    """A round according to the events: its planned groups, the clients that were skipped, and the failed groups."""

    teams: Sequence[Sequence[int]]
    skipped: set[tuple[int, int]] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    trained: set[tuple[int, int]] = field(default_factory=set)
    #: Clients that began anew, because their nodes no longer had what they keep.
    lost: set[int] = field(default_factory=set)
    #: Clients whose nodes were away when the round began.
    away: set[int] = field(default_factory=set)
    #: Clients that did not answer a question before the round, and are in no team.
    silent: set[int] = field(default_factory=set)

    @property
    def taking_part(self) -> list[list[int]]:
        """The members of each group that were not skipped, in planned order; no members for a failed group."""
        return [
            [] if group in self.failed else [client for client in team if (group, client) not in self.skipped]
            for group, team in enumerate(self.teams)
        ]


def rounds_told(events: Sequence[Event]) -> dict[int, Told]:
    """The rounds by number. If a round was started again, its last start counts; a resumed round continues."""
    rounds: dict[int, Told] = {}
    resumed: set[int] = set()
    asked_in_vain: defaultdict[int, set[int]] = defaultdict(set)
    for event in events:
        match event:
            case {"event": "round_resumed", "round": int(number)}:
                resumed.add(number)
            case {"event": "round_started", "round": int(number), "teams": teams}:
                if number not in resumed or number not in rounds or rounds[number].teams != teams:
                    rounds[number] = Told(teams)
                rounds[number].silent = asked_in_vain[number].difference(*teams)
                resumed.discard(number)
            case {"event": "client_skipped", "program": "describe" | "evaluate-training", "round": int(number)}:
                asked_in_vain[number].add(event["client"])
            case {"event": "question_failed", "program": "describe" | "evaluate-training", "round": int(number)}:
                asked_in_vain[number].update(event["clients"])
            case {"event": "listening"}:  # a resumed run asks again
                asked_in_vain.clear()
            case {"event": "round_failed", "round": int(number)} if number not in rounds:  # nobody answered
                asked_in_vain.pop(number, None)
            case {"event": "client_skipped", "program": "relay" | "parallel", "round": int(number)}:
                rounds[number].skipped.add((event["group"], event["client"]))
            case {"event": "hop_finished", "round": int(number)} if number in rounds:
                rounds[number].trained.add((event["group"], event["client"]))
                rounds[number].skipped.discard((event["group"], event["client"]))  # the client was tried again
            case {"event": "model_lost", "client": int(client), "round": int(number)} if number in rounds:
                rounds[number].lost.add(client)
            case {"event": "clients_away", "round": int(number), "clients": clients} if number in rounds:
                rounds[number].away |= set(clients)
            case {"event": "group_failed", "round": int(number)}:
                rounds[number].failed.add(event["group"])
    return rounds


@dataclass(frozen=True, slots=True)
class Expected:
    """What a run must have."""

    #: The global model after the last round, without the tensors that do not travel.
    model: State
    #: The personal models of Ditto's clients. Only clients that took part in every round are here: the events do not
    #: say whether a skipped client had trained before it was skipped.
    personal: dict[int, State]
    #: Trainings whose results differ from those in the receipts of the nodes.
    wrong: list[str]


def expected(plan: Plan, told: Mapping[int, Told], trained: Sequence[Training] = ()) -> Expected:
    """What the oracle computes; `trained` are the trainings of all nodes, which it needs for kept state."""
    reference, clients = reference_of(plan), range(plan.clients)
    task = reference.task
    personal: dict[int, State] = {}  # the reference fills it
    if plan.scheme == "ditto":
        how: dict[str, Any] = {
            "training": "ditto",
            "numbers": values_of(TRAININGS["ditto"].read({})),
            "personal": personal,
        }
        reference = CoalitionReference(task, clients, plan.rounds, seed=plan.seed, **how)
    model, wrong = reference.initial(), list[str]()
    travels = travelling(task)
    for number in range(1, plan.rounds + 1):
        states, sizes = [], []
        after: dict[int, Any] = {}
        if isinstance(reference, Keeping):
            lost = told[number].lost
            reference.states, after, differing = states_after(reference, model, number, trained, lost, travels)
            wrong += differing
        for group, members in enumerate(told[number].taking_part):
            if members:
                team = told[number].teams[group]
                states.append(RULES[plan.scheme](reference, model, number, group, team, members))
                sizes.append(sum(len(reference.task.data(client).train) for client in members))
        model = weighted_mean(states, sizes if plan.scheme in WEIGHTED else [1] * len(states))
        if isinstance(reference, Keeping):
            reference.states = after
    always = set(clients).intersection(*(set().union(*this.taking_part) for this in told.values()))
    return Expected(
        _only(travels, model),
        {client: _only(travels, kept) for client, kept in sorted(personal.items()) if client in always},
        wrong,
    )


def reference_of(plan: Plan) -> Reference:
    """The oracle of all schemes but Ditto."""
    kind = OF_STATE.get(plan.optimizer, Reference)
    reference = kind(_task(plan.clients, plan.variant), range(plan.clients), plan.rounds, seed=plan.seed)
    if plan.optimizer != "sgd":
        reference.optimizer = lambda parameters, rate: torch.optim.AdamW(parameters, lr=rate)
    return reference


def travelling(task: Task) -> set[str]:
    """The names of the tensors that are sent; the model has no buffers."""
    return {name for name, tensor in task.model().named_parameters() if tensor.requires_grad}


def _only(names: Collection[str], state: State) -> State:
    return {name: array for name, array in state.items() if name in names}


def untold(told: Mapping[int, Told]) -> list[str]:
    """Clients that were not skipped, but have no event for their hop."""
    return [
        f"round {number}: client {client} was not skipped, but has no event for its training"
        for number, this in told.items()
        for group, members in enumerate(this.taking_part)
        for client in members
        if (group, client) not in this.trained
    ]


def unnamed(told: Mapping[int, Told], events: Sequence[Event]) -> list[str]:
    """Differences between the absences that the run names at its end, and those that its other events show."""
    named = {
        (client, number)
        for event in events
        if event["event"] == "clients_missed"
        for client in event["clients"]
        for number in range(event["first"], event["last"] + 1)
    }
    shown = {
        (client, number)
        for number, this in told.items()
        for group, team in enumerate(this.teams)
        for client in team
        if client not in this.taking_part[group]
    }
    shown |= {
        (client, number)
        for number, this in told.items()
        # Others came back in time.
        for client in this.silent | this.away.difference(client for _, client in this.trained)
    }
    return [
        *(f"round {number}: the absence of client {client} is not named" for client, number in sorted(shown - named)),
        *(f"round {number}: client {client} is called absent" for client, number in sorted(named - shown)),
    ]


def misplaced(plan: Plan, events: Sequence[Event]) -> list[str]:
    """Rounds in which groups differ from those of a run without faults, although all nodes were connected.

    Groups that are dealt by time are different in every run.
    """
    if plan.balance:
        return []
    reference = Reference(
        _task(plan.clients, plan.variant),
        range(plan.clients),
        plan.rounds,
        plan.alpha,
        beta=2,
        sampling_rate=1.0,
        seed=plan.seed,
    )
    wrong, present, calm = [], 0, True
    first: Sequence[Sequence[int]] = []
    for event in events:
        match event:
            case {"event": "listening"}:
                present, calm = 0, False
            case {"event": "node_joined" | "node_left" as what}:
                present, calm = present + (1 if what == "node_joined" else -1), False
            case {"event": "client_skipped", "program": "evaluate-training"} | {"event": "question_failed"}:
                calm = False  # a client without a profile is in no group
            case {"event": "run_started" | "round_finished"}:
                calm = present == len(plan.hosted)
            case {"event": "round_started", "round": int(number), "teams": teams}:
                first = first or teams
                expected = first if plan.scheme.startswith("naive") else [list(range(plan.clients))]
                if plan.scheme == "fedgsp":
                    expected = [list(group) for group in reference.sampled_groups(number)]
                if teams != expected and (calm or plan.scheme.startswith("naive")):
                    wrong.append(f"round {number} has groups {teams}, expected {expected}")
    return wrong


def _relayed(
    reference: Reference, model: State, number: int, group: int, team: Sequence[int], members: Sequence[int]
) -> State:
    for client in [client for client in team if client in members]:
        model = reference.train(model, client, number)
    return model


def _shuffled(
    reference: Reference, model: State, number: int, group: int, team: Sequence[int], members: Sequence[int]
) -> State:
    order = stream(reference.seed, "client-order", number, group).permutation(len(team))
    return _relayed(reference, model, number, group, [team[i] for i in order], members)


def _averaged(
    reference: Reference, model: State, number: int, group: int, team: Sequence[int], members: Sequence[int]
) -> State:
    states = [reference.train(model, client, number) for client in members]
    return weighted_mean(states, [len(reference.task.data(client).train) for client in members])


def _by_accuracy(
    reference: Reference, model: State, number: int, group: int, team: Sequence[int], members: Sequence[int]
) -> State:
    weights = zip(
        team, GroupReference(reference.task, team, reference.rounds).by_accuracy(model_of(model)), strict=True
    )
    counted = [(client, weight) for client, weight in weights if weight > 0 and client in members]
    states = [reference.train(model, client, number) for client, _ in counted]
    return weighted_mean(states, [weight for _, weight in counted])


RULES = {
    "fedgsp": _shuffled,
    "naive-gsp": _relayed,
    "naive-gsp-icg": _relayed,
    "fedavg": _averaged,
    "global": _averaged,
    "ditto": _averaged,
    "fedfa": _by_accuracy,
}
WEIGHTED = ("fedavg", "global", "ditto")


#: The oracles of state that is not fresh.
OF_STATE: Mapping[str, type[Reference]] = {RELAYED: Relaying, KEPT: Keeping}


@cache
def _task(clients: int, variant: str) -> Task:
    return load_task("benchmarks.chaos.slow_digits:SlowDigits", {"clients": str(clients), "variant": variant})
