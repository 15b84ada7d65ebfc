"""One round, from top to bottom: group, sample, train, merge, evaluate, note."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgsp.errors import RunError
from fedgsp.messages import Failure
from fedgsp.seeds import stream
from fedgsp.weights import Weights
from top_server.costs import CostModel
from top_server.grouping import GroupingRequest, Plan
from top_server.grouping.cpd import cpd_median
from top_server.growth import group_count
from top_server.merge import MERGES
from top_server.profiles import PROFILES
from top_server.run import GroupOutcome, Run
from top_server.sampling import sample


@dataclass(frozen=True, slots=True)
class Teams:
    """The groups of a round, and those of them that train."""

    plan: Plan
    sampled: tuple[tuple[int, ...], ...]


async def play(run: Run, number: int, last: int) -> dict[str, Any]:
    """Plays round `number` of `last`; returns its row of the history. Raises RunError if nobody trained."""
    begin = time.monotonic()
    await wait_for_clients(run)
    clients = await PROFILES[run.scheme.profile](run, number)
    teams = await form_teams(run, number, clients)
    managers = await run.managers.ensure(len(teams.sampled))
    run.journal.record(
        "round_started",
        round=number,
        groups=len(teams.plan.groups),
        sampled_groups=len(teams.sampled),
        clients=sum(len(group) for group in teams.sampled),
        members=[len(group) for group in teams.sampled],
    )
    training = [
        asyncio.create_task(run.run_group(number, index, run.scheme.program, group, manager), name=f"group {index}")
        for index, (group, manager) in enumerate(zip(teams.sampled, managers, strict=True))
    ]
    try:
        outcomes, merged = await merge(run, number, training)
    finally:
        for task in training:
            task.cancel()
        await asyncio.gather(*training, return_exceptions=True)
    run.keep_model(f"{run.run_id}/{number}", merged)
    evaluated = None
    if number % run.config.evaluate_every == 0 or number == last:
        evaluated = await run.evaluate(number)
    accuracy, loss = evaluated or (None, None)
    costs = _costs(run)
    row = run.journal.row(
        {
            "round": number,
            "groups": len(teams.plan.groups),
            "sampled_groups": len(teams.sampled),
            "clients_trained": sum(len(outcome.took_part) for outcome in outcomes),
            "clients_skipped": sum(len(outcome.left_out) for outcome in outcomes),
            "accuracy": accuracy,
            "loss": loss,
            "seconds": round(time.monotonic() - begin, 3),
            "bytes_direct": _sum_of(outcomes, "bytes_direct"),
            "bytes_relayed": _sum_of(outcomes, "bytes_relayed"),
            "cpd_median": _cpd(run, teams.plan),
            "t_comp_s": costs.t_comp_s(len(teams.plan.groups) if run.scheme.program == "relay" else costs.clients),
            "t_comm_s": costs.t_comm_s(),
            "d_comm_bytes": costs.d_comm_bytes(),
        }
    )
    run.journal.record("round_finished", **row)
    return row


async def wait_for_clients(run: Run) -> None:
    """A run whose clients have all gone waits for one to come back; raises RunError if none does."""
    if not await run.membership.wait_for(1, 1, run.config.join_timeout):
        raise RunError(f"no client came back for {run.config.join_timeout:.0f} s", "start the nodes again")


async def form_teams(run: Run, number: int, clients: list[int]) -> Teams:
    """Grouping and sampling among these clients. Static schemes keep the first round's groups."""
    config, scheme = run.config, run.scheme
    if not clients:
        raise RunError(f"no client told its profile ({scheme.profile})", "see events.jsonl for the reasons")
    wanted = group_count(scheme.growth, number, config.alpha, config.beta, len(clients))
    rng = stream(config.seed, "sampling", number)
    if scheme.sampling == "clients":
        clients = list(sample(clients, config.sampling_rate, rng))
    if run.plan is None or scheme.regroup:
        run.plan = await run.assign(_request(run, number, wanted, clients))
    sampled = run.plan.groups
    if scheme.sampling == "groups":
        sampled = sample(sampled, config.sampling_rate, rng)
    return Teams(run.plan, sampled)


def _request(run: Run, number: int, wanted: int, clients: list[int]) -> GroupingRequest:
    hosted = run.membership.clients
    return GroupingRequest(
        round=number,
        groups=wanted,
        seed=run.config.seed,
        clients=tuple(clients),
        sizes=np.array([hosted[client].train_samples for client in clients], np.int64),
        histograms=run.histogram_rows(clients) if run.histograms else None,
        options=run.config.grouping_option,
    )


async def merge(
    run: Run, number: int, training: Iterable[asyncio.Task[GroupOutcome]]
) -> tuple[list[GroupOutcome], Weights]:
    """Folds the groups' models in the order of the groups, so that the merged bits do not depend on timing."""
    make = MERGES[run.scheme.merge]
    assert make is not None  # no row of the table keeps a model per group yet, and --merge does not offer it
    mean, folded = make(), 0
    outcomes: list[GroupOutcome] = []
    reason = "it has no groups"
    for task in training:
        outcome = await task
        outcomes.append(outcome)
        weights = await run.take(outcome)
        if isinstance(weights, Failure):
            reason = str(weights)
            run.journal.record("group_failed", round=number, group=outcome.number, reason=reason)
            continue
        await asyncio.to_thread(mean.fold, weights.arrays, outcome.samples)
        folded += 1
        run.journal.record("group_finished", round=number, group=outcome.number)
    if not folded:
        raise RunError(
            f"round {number} trained nobody: {reason}", "see events.jsonl and the logs in the run directory"
        )
    return outcomes, Weights.of(mean.result(), run.membership.tensors)


def _cpd(run: Run, plan: Plan) -> float | None:
    if not run.histograms or len(plan.groups) < 2:
        return None
    known = [[client for client in group if client in run.histograms] for group in plan.groups]
    return cpd_median(np.stack([run.histogram_rows(group).sum(axis=0) for group in known if group]))


def _costs(run: Run) -> CostModel:
    sizes = [hosted.train_samples for hosted in run.membership.clients.values()]
    paper = CostModel()
    parameters = sum(math.prod(spec.shape) for spec in run.membership.tensors if spec.trainable)
    return CostModel(
        clients=len(sizes),
        sampling_rate=run.config.sampling_rate,
        local_epochs=run.config.local_epochs,
        samples_per_client=sum(sizes) / max(1, len(sizes)),
        model_bytes=run.model_bytes,
        flop_per_sample=run.membership.training_flop or paper.flop_per_sample,
        flop_per_aggregation=parameters,
    )


def _sum_of(outcomes: list[GroupOutcome], name: str) -> int:
    return sum(getattr(outcome.result, name, 0) for outcome in outcomes)
