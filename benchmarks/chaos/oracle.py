"""Computes the models that a run must have, by an independent implementation that knows who trained with whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from benchmarks.chaos.events import Event
from benchmarks.chaos.plan import RELAYED, Plan
from fedgsp.settings.fields import values_of
from fedgsp.task import Task
from fedgsp.trainings import TRAININGS
from fedgsp_node.tasks import load_task
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
    for event in events:
        match event:
            case {"event": "round_resumed", "round": int(number)}:
                resumed.add(number)
            case {"event": "round_started", "round": int(number), "teams": teams}:
                if number not in resumed or number not in rounds or rounds[number].teams != teams:
                    rounds[number] = Told(teams)
                resumed.discard(number)
            case {"event": "client_skipped", "program": "relay" | "parallel", "round": int(number)}:
                rounds[number].skipped.add((event["group"], event["client"]))
            case {"event": "hop_finished", "round": int(number)} if number in rounds:
                rounds[number].trained.add((event["group"], event["client"]))
                rounds[number].skipped.discard((event["group"], event["client"]))  # the client was tried again
            case {"event": "group_failed", "round": int(number)}:
                rounds[number].failed.add(event["group"])
    return rounds


def final_model(plan: Plan, told: Mapping[int, Told]) -> State:
    """The global model after the last round."""
    return final_models(plan, told)[0]


def final_models(plan: Plan, told: Mapping[int, Told]) -> tuple[State, dict[int, State]]:
    """The global model after the last round, and the personal models of Ditto's clients.

    Only clients that took part in every round have a personal model here: the events do not say whether a skipped
    client had trained before it was skipped.
    """
    task, clients = _task(plan.clients), range(plan.clients)
    kind = Relaying if plan.optimizer == RELAYED else Reference
    reference = kind(task, clients, plan.rounds, seed=plan.seed)
    if plan.optimizer != "sgd":
        reference.optimizer = lambda parameters, rate: torch.optim.AdamW(parameters, lr=rate)
    personal: dict[int, State] = {}  # the reference fills it
    if plan.scheme == "ditto":
        how: dict[str, Any] = {
            "training": "ditto",
            "numbers": values_of(TRAININGS["ditto"].read({})),
            "personal": personal,
        }
        reference = CoalitionReference(task, clients, plan.rounds, seed=plan.seed, **how)
    model = reference.initial()
    for number in range(1, plan.rounds + 1):
        states, sizes = [], []
        for group, members in enumerate(told[number].taking_part):
            if members:
                trained = RULES[plan.scheme](reference, model, number, group, told[number].teams[group], members)
                states.append(trained)
                sizes.append(sum(len(reference.task.data(client).train) for client in members))
        model = weighted_mean(states, sizes if plan.scheme in WEIGHTED else [1] * len(states))
    always = set(clients).intersection(*(set().union(*this.taking_part) for this in told.values()))
    return model_of(model), {client: kept for client, kept in sorted(personal.items()) if client in always}


def untold(told: Mapping[int, Told]) -> list[str]:
    """Clients that were not skipped, but have no event for their hop."""
    return [
        f"round {number}: client {client} was not skipped, but has no event for its training"
        for number, this in told.items()
        for group, members in enumerate(this.taking_part)
        for client in members
        if (group, client) not in this.trained
    ]


def misplaced(plan: Plan, events: Sequence[Event]) -> list[str]:
    """Rounds in which groups differ from those of a run without faults, although all nodes were connected."""
    reference = Reference(
        _task(plan.clients), range(plan.clients), plan.rounds, plan.alpha, beta=2, sampling_rate=1.0, seed=plan.seed
    )
    wrong, present, calm = [], 0, True
    first: Sequence[Sequence[int]] = []
    for event in events:
        match event:
            case {"event": "listening"}:
                present, calm = 0, False
            case {"event": "node_joined" | "node_left" as what}:
                present, calm = present + (1 if what == "node_joined" else -1), False
            case {"event": "client_skipped", "program": "evaluate-training"}:
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


@cache
def _task(clients: int) -> Task:
    return load_task("digits", {"clients": str(clients)})
