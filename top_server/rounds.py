"""One round, from top to bottom: learn of the clients, group, sample, train, merge, evaluate, note."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgsp.errors import RunError
from fedgsp.messages import Failure, FailureCode, Results
from fedgsp.seeds import stream
from top_server.costs import CostModel
from top_server.evaluation import evaluate
from top_server.evidence import Evidence
from top_server.group_run import LOST, MOST_TRIES, GroupOutcome, GroupTask, Trace, run_group
from top_server.grouping import GroupingRequest, Plan
from top_server.grouping.cpd import cpd_median
from top_server.growth import group_count
from top_server.latecomers import with_absent, with_latecomers
from top_server.local_run import gains
from top_server.membership import RETURN_TIMEOUT_S
from top_server.merging.one_model import OneModel
from top_server.moved import Moved
from top_server.run import Run
from top_server.sampling import sample
from top_server.weighing import WEIGHINGS


class AllLostError(RunError):
    """Nobody trained, as everybody was lost."""


@dataclass(frozen=True, slots=True)
class Teams:
    """The groups of a round, and those of them that train."""

    plan: Plan
    sampled: tuple[tuple[int, ...], ...]


async def play(run: Run, number: int, last: int) -> dict[str, Any]:
    """Plays round `number` of `last`; returns its row of the history. Raises RunError if nobody trained.

    A round whose nodes were all lost, perhaps with a network, is tried again when some are back.
    """
    begin = time.monotonic()
    await wait_for_clients(run)
    evidence = await run.profile.gather(number)  # once: it may use up what the round before left
    clients = tuple(run.membership.clients)
    for tries in range(MOST_TRIES):
        if tries:
            await run.membership.wait_for_all(clients, min(RETURN_TIMEOUT_S, run.config.join_timeout))
        try:
            return await _try(run, number, last, evidence, tries, begin)
        except AllLostError as error:
            run.journal.record("round_failed", round=number, reason=error.what)
            lost = error
    raise RunError(lost.what, lost.remedy)


async def _try(run: Run, number: int, last: int, evidence: Evidence, tries: int, begin: float) -> dict[str, Any]:
    await wait_for_clients(run)
    teams = await form_teams(run, number, evidence)
    run.merging.afresh.clear()
    await run.merging.begin(number, evidence)
    tasks = group_tasks(run, teams, evidence)
    managers = await run.managers.ensure(len(tasks))
    traces = _traces(run, number, tasks, tries)
    run.journal.record(
        "round_started",
        round=number,
        groups=len(teams.plan.groups),
        sampled_groups=len(teams.sampled),
        clients=sum(len(group) for group in teams.sampled),
        members=[len(task.clients) for task in tasks],
        teams=[task.clients for task in tasks],
    )
    training = [
        asyncio.create_task(run_group(run, number, task, manager, trace), name=f"group {task.number}")
        for task, manager, trace in zip(tasks, managers, traces, strict=True)
    ]
    try:
        outcomes = await merge(run, number, training)
    finally:
        for task in training:
            task.cancel()
        await asyncio.gather(*training, return_exceptions=True)
    for outcome in outcomes:  # only now, so that no group is judged by what the others happened to finish before
        run.update_lengths.extend(outcome.update_lengths)
    evaluated = None
    if number % run.config.evaluate_every == 0 or number == last:
        evaluated = await evaluate(run, number)
    costs = _costs(run, teams)
    moved = sum((outcome.moved for outcome in outcomes), Moved())
    row: dict[str, Any] = {
        "round": number,
        "groups": len(teams.plan.groups),
        "sampled_groups": len(teams.sampled),
        "clients_trained": sum(len(outcome.took_part) for outcome in outcomes),
        "clients_skipped": sum(len(outcome.left_out) for outcome in outcomes),
        "accuracy": evaluated.accuracy if evaluated else None,
        "loss": evaluated.loss if evaluated else None,
        "clients_evaluated": len(evaluated.of) if evaluated else None,
        "seconds": round(time.monotonic() - begin, 3),
        "bytes_direct": moved.direct,
        "bytes_relayed": moved.relayed,
        "cpd_median": _cpd(run, teams.plan),
        "t_comp_s": costs.t_comp_s(len(teams.plan.groups) if run.scheme.program == "relay" else costs.clients),
        "t_comm_s": costs.t_comm_s(),
        "d_comm_bytes": costs.d_comm_bytes(),
    }
    if run.scheme.sampling == "none" or not isinstance(run.merging, OneModel):
        # Nobody is drawn, or models differ: who trains with whom, and how well each is served, is the result.
        row["partition"] = [list(group) for group in teams.plan.groups]
        if evaluated is not None:
            row["accuracy_per_client"] = evaluated.per_client
    if evaluated is not None and run.alone is not None:
        row["ipr"], row["rsd"] = gains(evaluated.per_client, run.alone) or (None, None)
    if evaluated is not None and evaluated.metrics:
        row["metrics_per_client"] = evaluated.metrics
    row = run.journal.row(row)
    run.journal.record("round_finished", **row)
    return row


def _traces(run: Run, number: int, tasks: list[GroupTask], tries: int) -> Sequence[Trace]:
    """What the groups had done before their top server died, if this is the same round of the same groups."""
    interrupted, run.interrupted = run.interrupted, None
    if interrupted is not None and (interrupted.round, interrupted.teams) == (number, tuple(t.clients for t in tasks)):
        traces = [run.shown(task, trace) for task, trace in zip(tasks, interrupted.traces, strict=True)]
        run.journal.record("round_resumed", round=number, hops=sum(len(trace.finished) for trace in traces))
        return traces
    # Orders and models of every try have names of their own.
    return [run.trace(tries)] * len(tasks)


async def wait_for_clients(run: Run) -> None:
    """A run whose clients have all gone waits for one to come back; raises RunError if none does."""
    if not await run.membership.wait_for(1, 1, run.config.join_timeout):
        raise RunError(f"no client came back for {run.config.join_timeout:.0f} s", "start the nodes again")


async def form_teams(run: Run, number: int, evidence: Evidence) -> Teams:
    """Grouping and sampling among the clients that are known."""
    config, scheme = run.config, run.scheme
    if not evidence.clients:
        raise RunError(f"no client told its profile ({scheme.profile})", "see events.jsonl for the reasons")
    wanted = group_count(scheme.growth, number, config.alpha, config.beta, len(evidence.clients))
    rng = stream(config.seed, "sampling", number)
    if scheme.sampling == "clients":
        evidence = evidence.of(sample(evidence.clients, config.sampling_rate, rng))
    run.first_clients -= run.merging.afresh
    if run.plan is None and scheme.after_arrivals == "joined":
        run.first_clients.update(evidence.clients)
    arrived = run.plan is not None and (bool(evidence.newcomers) or not run.plan.names(evidence.clients))
    if run.plan is None or scheme.regroup == "always" or (scheme.regroup == "arrivals" and arrived):
        plan = await run.assign(_request(run, number, wanted, evidence))
        run.plan = with_absent(plan, run.plan) if run.plan is not None and scheme.continues else plan
    elif arrived:
        run.plan, placed = with_latecomers(run.plan, evidence.clients)
        for client, group in placed.items():
            run.journal.record("client_placed", round=number, client=client, group=group)
    sampled = run.plan.groups
    if scheme.sampling == "groups":
        sampled = sample(sampled, config.sampling_rate, rng)
    if scheme.after_arrivals == "joined":
        joined = set(run.membership.clients) - run.first_clients
        sampled = tuple(group for group in sampled if joined.intersection(group)) or sampled
    return Teams(run.plan, sampled)


def group_tasks(run: Run, teams: Teams, evidence: Evidence) -> list[GroupTask]:
    """What each sampled group does; clients that train alone share one manager if their models need none."""
    scheme, merging = run.scheme, run.merging
    hosted = run.membership.clients
    known = [client for client in evidence.clients if client in hosted]
    sizes = np.array([hosted[client].train_samples for client in known])
    weights = dict(zip(known, WEIGHINGS[scheme.weighing](sizes, evidence.columns(known)).tolist(), strict=True))
    tasks: list[GroupTask] = []
    alone: list[int] = []
    for index, group in enumerate(teams.sampled):
        if len(group) == 1 and merging.alone is not None:
            alone += group
        else:
            starts = merging.start(group)
            results = Results.RETAINED if evidence.retain else Results.UNSPECIFIED
            task = GroupTask(index, scheme.program, group, starts, {}, weights, results, evidence.reveal)
            tasks.append(task)
    if alone:
        own = {client: merging.start((client,))[0][0] for client in alone if client in hosted}
        number = len(teams.sampled)
        assert merging.alone is not None
        tasks.append(
            GroupTask(number, "alone", tuple(alone), own_starts=own, results=merging.alone, reveal=evidence.reveal)
        )
    return tasks


def _request(run: Run, number: int, wanted: int, evidence: Evidence) -> GroupingRequest:
    hosted = run.membership.clients
    # A client may leave between its answer and this question; its group is told so.
    sizes = [hosted[client].train_samples if client in hosted else 0 for client in evidence.clients]
    return GroupingRequest(
        round=number,
        groups=wanted,
        seed=run.config.seed,
        clients=evidence.clients,
        sizes=np.array(sizes, np.int64),
        histograms=evidence.histograms,
        matrices=evidence.matrices,
        options=run.options["grouping"],
        newcomers=evidence.newcomers,
        settled=run.plan.among(set(evidence.clients) - set(evidence.newcomers)) if run.plan is not None else (),
        learning_rate=run.config.learning_rate_in(number - 1),
    )


async def merge(run: Run, number: int, training: Iterable[asyncio.Task[GroupOutcome]]) -> list[GroupOutcome]:
    """Takes in the groups' results in the order of the groups, so that the merged bits do not depend on timing."""
    outcomes: list[GroupOutcome] = []
    taken, failures = 0, [Failure(FailureCode.UNSPECIFIED, "it has no groups")]
    for task in training:
        outcome = await task
        failure = await run.merging.take(number, outcome)
        if failure is not None and failure.code is FailureCode.UNREACHABLE and not outcome.manager_lost:
            # Lost with its result, which the top server comes for only now.
            manager = await run.managers.replace(outcome.manager)
            trace = run.shown(outcome.task, outcome.trace.after(outcome))
            outcome = await run_group(run, number, outcome.task, manager, trace)
            failure = await run.merging.take(number, outcome)
        outcomes.append(outcome)
        if failure is not None:
            failures.append(failure)
            run.journal.record("group_failed", round=number, group=outcome.task.number, reason=str(failure))
            continue
        taken += 1
        if outcome.task.results is Results.RETAINED:
            run.local_models.update(outcome.own_models)
        run.journal.record("group_finished", round=number, group=outcome.task.number)
    if not taken and run.merging.afresh:
        return outcomes  # whose models were lost start afresh in the next round
    if not taken:
        kind = AllLostError if {failure.code for failure in failures[1:]} <= LOST else RunError
        raise kind(
            f"round {number} trained nobody: {failures[-1]}", "see events.jsonl and the logs in the run directory"
        )
    await run.merging.finish(number)
    return outcomes


def _cpd(run: Run, plan: Plan) -> float | None:
    if not run.histograms or len(plan.groups) < 2:
        return None
    known = [[client for client in group if client in run.histograms] for group in plan.groups]
    return cpd_median(np.stack([run.histogram_rows(group).sum(axis=0) for group in known if group]))


def _costs(run: Run, teams: Teams) -> CostModel:
    busy = {client for group in teams.sampled for client in group} if run.scheme.sampling == "none" else None
    sizes = [
        hosted.train_samples for client, hosted in run.membership.clients.items() if busy is None or client in busy
    ]
    paper = CostModel()
    parameters = sum(math.prod(spec.shape) for spec in run.membership.tensors if spec.trainable)
    return CostModel(
        clients=len(sizes),
        sampling_rate=run.config.sampling_rate if run.scheme.sampling != "none" else 1.0,
        local_epochs=run.config.local_epochs,
        samples_per_client=sum(sizes) / max(1, len(sizes)),
        model_bytes=run.model_bytes,
        flop_per_sample=run.membership.training_flop or paper.flop_per_sample,
        flop_per_aggregation=parameters,
    )
