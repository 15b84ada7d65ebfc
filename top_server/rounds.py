"""One round, from top to bottom: learn of the clients, group, sample, train, merge, evaluate, note."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedgsp.errors import RunError
from fedgsp.messages import Failure, FailureCode, Results
from fedgsp.seeds import stream
from top_server.evaluation import evaluate
from top_server.evidence import Evidence
from top_server.grouping import GroupingRequest
from top_server.grouping.growth import group_count
from top_server.grouping.latecomers import with_absent, with_latecomers
from top_server.grouping.sampling import sample
from top_server.groups.run import MOST_TRIES, run_group
from top_server.groups.task import GroupOutcome, GroupTask, Trace
from top_server.merging.weighing import WEIGHINGS
from top_server.nodes.membership import RETURN_TIMEOUT_S
from top_server.row import Teams, row_of
from top_server.run import AllLostError, Run, unanswered


async def play(run: Run, number: int, last: int) -> dict[str, Any]:
    """Plays round `number` of `last`; returns its row of the history. Raises RunError if nobody trained.

    A round whose nodes were all lost, perhaps with a network, is tried again when some are back.
    """
    begin = time.monotonic()
    await wait_for_clients(run)
    clients = tuple(run.membership.clients)
    evidence: Evidence | None = None
    for tries in range(MOST_TRIES):
        if tries:
            await run.membership.wait_for_all(clients, min(RETURN_TIMEOUT_S, run.config.join_timeout))
            await wait_for_clients(run)
        try:
            if evidence is None:  # once it is there it stays: what the round before left may be used up
                evidence = await run.profile.gather(number)
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
    traces = _traces(run, number, teams, tasks, tries)
    run.journal.record(
        "round_started",
        round=number,
        groups=len(teams.plan.groups),
        sampled_groups=len(teams.sampled),
        clients=sum(len(group) for group in teams.sampled),
        teams=teams.sampled,
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
    row = run.journal.row(row_of(run, number, teams, outcomes, evaluated, time.monotonic() - begin))
    run.journal.record("round_finished", **row)
    return row


def _traces(run: Run, number: int, teams: Teams, tasks: list[GroupTask], tries: int) -> Sequence[Trace]:
    """What the groups had done before their top server died, if this is the same round of the same groups."""
    interrupted, run.interrupted = run.interrupted, None
    if interrupted is not None and (interrupted.round, interrupted.teams) == (number, teams.sampled):
        began = dict(enumerate(interrupted.traces))  # clients that train alone share a task: they begin again
        traces = [run.shown(task, began.get(task.number, run.trace(tries))) for task in tasks]
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
    known = {client for client in evidence.clients if client in hosted}
    tasks: list[GroupTask] = []
    alone: dict[int, int] = {}
    for index, group in enumerate(teams.sampled):
        if len(group) == 1 and merging.alone is not None:
            alone[group[0]] = index
        else:
            starts = merging.start(group)
            members = [client for client in group if client in known]
            sizes = np.array([hosted[client].train_samples for client in members])
            weighed = WEIGHINGS[scheme.weighing](sizes, evidence.columns(members))
            weights = dict(zip(members, weighed.tolist(), strict=True))
            results = Results.RETAINED if evidence.retain else Results.UNSPECIFIED
            task = GroupTask(index, scheme.program, group, starts, {}, weights, results, evidence.reveal)
            tasks.append(task)
    if alone:
        own = {client: merging.start((client,))[0][0] for client in alone if client in hosted}
        number = len(teams.sampled)
        assert merging.alone is not None
        tasks.append(
            GroupTask(
                number,
                "alone",
                tuple(alone),
                own_starts=own,
                results=merging.alone,
                reveal=evidence.reveal,
                groups_of_one=alone,
            )
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
    taken = 0
    failures: list[Failure] = []
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
        _record_ends(run, number, outcome, failure)
        if failure is not None:
            failures.append(failure)
            continue
        taken += 1
        if outcome.task.results is Results.RETAINED:
            run.local_models.update(outcome.own_models)
    if not taken and run.merging.afresh:
        return outcomes  # whose models were lost start afresh in the next round
    if not taken:
        why = failures[-1] if failures else "it has no groups"
        raise unanswered(f"round {number} trained nobody: {why}", failures)
    await run.merging.finish(number)
    return outcomes


def _record_ends(run: Run, number: int, outcome: GroupOutcome, failure: Failure | None) -> None:
    failed = outcome.failed_groups(failure)
    for group in outcome.task.groups:
        if group in failed:
            run.journal.record("group_failed", round=number, group=group, reason=str(failed[group]))
        else:
            run.journal.record("group_finished", round=number, group=group)
