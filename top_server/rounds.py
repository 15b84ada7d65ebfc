"""One round, from top to bottom: learn of the clients, form teams, train, merge, evaluate, record."""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedgsp.errors import RunError
from fedgsp.messages import Failure, GroupResult, Results
from fedgsp.programs import PROGRAMS
from fedgsp.scoring import metric_of
from fedgsp.seeds import stream
from top_server.evaluation import NOT_REPORTED, VALIDATION, evaluate
from top_server.evidence import Evidence
from top_server.groups.lost import AllLostError
from top_server.groups.missed import missed_in, not_placed, without
from top_server.groups.moved import NOTHING
from top_server.groups.planning import count_tasks, round_tasks
from top_server.groups.run import MOST_NUMBERED, MOST_TRIES, fresh_trace, is_last, run_again, run_group, shown
from top_server.groups.taking import group_model, note_lost
from top_server.groups.task import GroupOutcome, GroupTask, Interrupted, Trace
from top_server.in_vain import FIRST_TRY, Tries, note_in_vain
from top_server.managers.client import BrokenOff
from top_server.managers.pool import Manager
from top_server.merging import MERGES, Merging, forgotten
from top_server.models import Changes, Made
from top_server.nodes.departures import RETURN_TIMEOUT_S
from top_server.nodes.waiting import wait_for_round
from top_server.profiles.base import AnyProfile
from top_server.progress import Progress
from top_server.record.events.evidence import ClientPlaced, TimesExpected
from top_server.record.events.rounds import (
    ClientsAway,
    GroupFailed,
    GroupFinished,
    RoundFailed,
    RoundResumed,
    RoundStarted,
)
from top_server.record.figures import row_of
from top_server.reveals.updates import Reveals
from top_server.run import RunContext
from top_server.teams import Before, Teams, ask, form

logger = logging.getLogger(__name__)

#: Pause in seconds before the next try of a round whose clients were lost although no node has left. It doubles each
#: time: a firewall may let nothing through to the ports of group managers while it gets new rules.
AGAIN_AFTER_S = 5.0


async def play(
    context: RunContext,
    progress: Progress,
    merging: Merging,
    profile: AnyProfile,
    number: int,
    interrupted: Interrupted | None = None,
) -> dict[str, Any]:
    """Plays round `number` and returns its row of the history; raises RunError if the run cannot go on.

    A round may train nobody, if it asked only some of the clients. If clients were lost and nobody trained, the round
    is tried again when they are back. `interrupted` is the round that an earlier top server of this run had begun.
    """
    begin = time.monotonic()
    await _wait_for_clients(context, number)
    clients = tuple(context.membership.clients)
    evidence: Evidence | None = None
    counted, moved, departures = 0, NOTHING, context.membership.departures
    for tried in range(MOST_NUMBERED):
        if tried:
            await context.membership.wait_for_all(clients, min(RETURN_TIMEOUT_S, context.config.join_timeout))
            await _wait_for_clients(context, number)
        before = departures.number
        try:
            if evidence is None:  # gathered once: gathering may use up what the last round left
                evidence = await gather(progress, profile, number)
            begun, interrupted = interrupted, None
            tries = Tries(tried, counted, moved)
            return await _try(context, progress, merging, profile, number, evidence, tries, begun, begin)
        except AllLostError as error:
            context.journal.record(RoundFailed(round=number, reason=error.what))
            lost = error
            moved += error.moved
            if departures.number != before:
                continue
            counted += 1  # nobody left: the round itself may be the cause
            if counted == MOST_TRIES:
                break
            await asyncio.sleep(AGAIN_AFTER_S * 2 ** (counted - 1))
    raise RunError(lost.what, lost.remedy)


async def _try(
    context: RunContext,
    progress: Progress,
    merging: Merging,
    profile: AnyProfile,
    number: int,
    evidence: Evidence,
    tries: Tries,
    begun: Interrupted | None,
    begin: float,
) -> dict[str, Any]:
    await _wait_for_clients(context, number)
    departures = context.membership.departures
    # At one moment: so every client is there or away.
    present, away, left_out = context.membership.clients, departures.away(), context.membership.left_out
    teams = await form_teams(context, progress, number, evidence)
    await begin_merging(context, merging, number, evidence)
    managers = await context.managers.ensure(count_tasks(merging, teams))
    # Only now: clients may have left, or come back, while managers started.
    tasks = round_tasks(context.scheme, merging, context.holdings(progress.local_models), teams, evidence)
    reveals = profile.reveals
    traces = _traces(context, reveals, number, teams, tasks, tries.number, begun)
    context.journal.record(
        RoundStarted(
            round=number,
            groups=len(teams.plan.groups),
            sampled_groups=len(teams.sampled),
            clients=sum(len(group) for group in teams.sampled),
            teams=teams.sampled,
            reason=teams.reason,
        )
    )
    away = without(away, [client for task in tasks for client in task.clients if context.membership.member(client)])
    outside = not_placed(present, evidence, teams.plan)
    silent = {client: why for client, why in profile.silent.items() if client in outside}
    away += departures.returned(outside - silent.keys())  # they came back too late to be asked
    for gone, seconds in away:
        away_s, clients = round(seconds, 1), sorted(gone.clients)
        context.journal.record(
            ClientsAway(round=number, node=gone.node, clients=clients, seconds=away_s, reason=gone.reason)
        )
    training = [
        asyncio.create_task(
            run_group(context, progress, number, task, manager, trace, reveals), name=f"group {task.number}"
        )
        for task, manager, trace in zip(tasks, managers, traces, strict=True)
    ]
    try:
        outcomes = await merge(context, progress, merging, number, training, reveals, tries)
    finally:
        for task in training:
            task.cancel()
        await asyncio.gather(*training, return_exceptions=True)
    for outcome in outcomes:  # only now, so that no group is judged by the groups that happened to finish before
        progress.update_lengths.extend(outcome.update_lengths)
    if reveals is not None:
        await reveals.round_over(set[int]().union(*(outcome.took_part for outcome in outcomes)))
    progress.absences.note(number, missed_in(outcomes, away, left_out, silent))
    progress.absences.came_back(number, departures.take_returned())
    evaluated = validated = None
    if number % context.config.evaluate_every == 0 or number == context.config.rounds:
        evaluated = await evaluate(context, progress, merging, number)
        if evaluated is not None and not evaluated.score_per_client and number <= context.config.evaluate_every:
            score = metric_of(context.membership.scoring.score)
            reasons = [why for why in evaluated.left_out.get(score, {}).values() if why != NOT_REPORTED]
            why = next(iter(reasons), "is that its name?")
            logger.warning("no client has a number for %r, which rates the models: %s", score, why)
        validated = await evaluate(context, progress, merging, number, VALIDATION)
    return context.journal.finish_round(
        row_of(
            context,
            number,
            teams,
            outcomes,
            evaluated,
            seconds=time.monotonic() - begin,
            shared=merging.shared,
            histograms=profile.histograms,
            validated=validated,
            moved_before=tries.moved,
        )
    )


def _traces(
    context: RunContext,
    reveals: Reveals | None,
    number: int,
    teams: Teams,
    tasks: list[GroupTask],
    tries: int,
    begun: Interrupted | None,
) -> Sequence[Trace]:
    """What the groups had done before their top server died, if this is the same round of the same groups."""
    fresh = fresh_trace(context, tries)
    if begun is not None and (begun.round, begun.teams) == (number, teams.sampled):
        of_group = dict(enumerate(begun.traces))  # clients that train alone share a task: they begin again
        traces = [shown(task, of_group.get(task.number, fresh), reveals) for task in tasks]
        kept = [hop.member.client for trace in traces for hop in trace.finished if hop.member is not None]
        context.journal.record(RoundResumed(round=number, hops=len(kept), kept=kept))
        return traces
    return [fresh] * len(tasks)


async def _wait_for_clients(context: RunContext, number: int) -> None:
    """Waits for clients if fewer are there than a round needs; raises RunError if they do not come."""
    await wait_for_round(context.config, context.membership, context.journal, number)


async def gather(progress: Progress, profile: AnyProfile, number: int) -> Evidence:
    """The evidence about the clients; models that are found to be lost are forgotten.

    Raises AllLostError if it is about nobody, and other clients may answer: they are away, or came or left meanwhile.
    """
    membership, departures = profile.context.membership, profile.context.membership.departures
    before, left = set(membership.clients), departures.number
    profile.begin_gathering()
    evidence = await profile.gather(number)
    changed = departures.number != left or not before.issuperset(membership.clients)
    if not evidence.clients and (changed or departures.clients.difference(membership.left_out)):
        what = f"no client that is there reported its profile ({profile.context.scheme.profile})"
        raise AllLostError(what, "see events.jsonl for the reasons")
    for client in evidence.without_model:
        progress.local_models.pop(client, None)
    return evidence


async def form_teams(context: RunContext, progress: Progress, number: int, evidence: Evidence) -> Teams:
    """Decides who trains with whom, and notes it; raises RunError if there is evidence about nobody."""
    config, scheme = context.config, context.scheme
    rng = stream(config.seed, "sampling", number)
    before = Before(progress.plan, progress.first_clients - progress.afresh)
    # Of clients that have left since they gave evidence, too.
    sizes = {**evidence.away, **context.membership.told_samples.training}
    clients = sorted({*context.membership.clients, *evidence.clients})
    seconds = _expect(context, number, {client: sizes[client] for client in clients})
    question = ask(config, scheme, scheme.given("grouping"), number, before, evidence, sizes, rng, seconds)
    answer = await context.assign(question.request) if question.request is not None else None
    if answer is not None and answer.warning:
        logger.warning("round=%d %s", number, answer.warning)
    teams = form(config, scheme, before, question, answer, context.membership.clients, rng)
    progress.plan, progress.first_clients = teams.plan, teams.first_clients
    progress.afresh.clear()
    for client, group in teams.placed.items():
        context.journal.record(ClientPlaced(round=number, client=client, group=group))
    return teams


def _expect(context: RunContext, number: int, sizes: Mapping[int, int]) -> Mapping[int, float] | None:
    """With `--balance time`: how long each of these clients is expected to take; the record gets it too."""
    if context.turns is None:
        return None
    expected = context.turns.expected(number, sizes, context.membership.standard.training_flop)
    context.journal.record(TimesExpected(round=number, seconds=expected.seconds, by_samples=expected.by_samples))
    return expected.seconds


async def begin_merging(context: RunContext, merging: Merging, number: int, evidence: Evidence) -> None:
    """Lets the merge make what the groups of a round start from."""
    models = context.models
    weights = {slot: models.weights(models[slot]) for slot in merging.reads(evidence)}
    part = MERGES[context.scheme.merge]
    await change_models(context, lambda: forgotten.begin(part, merging, number, evidence, weights))


async def merge(
    context: RunContext,
    progress: Progress,
    merging: Merging,
    number: int,
    training: list[asyncio.Task[GroupOutcome]],
    reveals: Reveals | None = None,
    tries: Tries = FIRST_TRY,
) -> list[GroupOutcome]:
    """Takes in the groups' results in the order of the groups, so that the merged bits do not depend on timing.

    Groups whose results were lost run again, on as many managers as a group may be tried; their tasks in `training`
    are replaced.
    """
    outcomes: list[GroupOutcome] = []
    failed = 0
    for index in range(len(training)):
        outcome = await training[index]
        failure = await take_in(context, progress, merging, number, outcome)
        # The next manager may be lost before its result came, too.
        while isinstance(failure, BrokenOff) and not is_last(outcome.trace):
            lost = failure.lost
            # If its manager is gone, so are the results of all groups that ended there: they run again side by side.
            for again in range(index, len(training) if lost else index + 1):
                if again == index or _left_at(outcome.manager, training[again]):
                    begun = run_again(context, progress, number, training[again].result(), lost, reveals)
                    training[again] = asyncio.create_task(begun, name=training[again].get_name())
            outcome = await training[index]
            failure = await take_in(context, progress, merging, number, outcome)
        if isinstance(failure, BrokenOff):
            failure = failure.reason
        outcomes.append(outcome if failure is None else dataclasses.replace(outcome, result=failure))
        _record_ends(context, number, outcome, failure)
        if failure is not None:
            failed += 1
        elif outcome.task.results is Results.RETAINED:
            progress.local_models.update(outcome.own_models)
    if failed == len(outcomes):
        if progress.afresh:
            return outcomes  # clients whose models were lost start afresh in the next round
        await note_in_vain(context, progress, number, outcomes, tries)
        return outcomes
    progress.in_vain = 0
    await change_models(context, lambda: merging.finish(number))
    return outcomes


def _left_at(manager: Manager, training: asyncio.Task[GroupOutcome]) -> bool:
    """Whether the group has ended, and its model waits at this manager."""
    if not training.done() or training.cancelled() or training.exception() is not None:
        return False
    outcome = training.result()
    made = PROGRAMS[outcome.task.program].makes_model and isinstance(outcome.result, GroupResult)
    return made and outcome.manager is manager and not is_last(outcome.trace)


def _record_ends(context: RunContext, number: int, outcome: GroupOutcome, failure: Failure | None) -> None:
    failed = outcome.failed_groups(failure)
    for group in outcome.task.groups:
        context.journal.record(
            GroupFailed(round=number, group=group, reason=str(failed[group]))
            if group in failed
            else GroupFinished(round=number, group=group)
        )


async def take_in(
    context: RunContext, progress: Progress, merging: Merging, number: int, outcome: GroupOutcome
) -> Failure | BrokenOff | None:
    """Gives a group's models to the merge; returns the reason if they could not be had."""
    note_lost(context, progress, merging, outcome)
    group = await group_model(context, outcome)
    if isinstance(group, Failure | BrokenOff):
        return group
    await change_models(context, lambda: merging.fold(number, group))
    return None


async def change_models(context: RunContext, made_by: Callable[[], Changes]) -> None:
    """Puts into slots what a merge makes. It is made, rounded as models travel, and hashed in a thread."""

    def settled() -> Changes:
        changes = made_by()
        for made in {change for change in changes.values() if isinstance(change, Made)}:
            made.weights = context.handed_on(made.weights).at_rest()
            _ = made.weights.digest
        return changes

    context.models.apply(await asyncio.to_thread(settled))
