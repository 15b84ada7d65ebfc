"""Plays all rounds of a run, and before them those of its local run."""

import asyncio
import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

from fedgsp.connections.channels import Channels
from fedgsp.identity import Identity, Role
from fedgsp.settings.run_files import BEYOND
from fedgsp.transfers.model_store import ModelStore
from top_server import rounds
from top_server.baseline import local_run
from top_server.best import after_row, is_last
from top_server.checkout import commit
from top_server.choosing import check_additions, check_head
from top_server.ending import finish
from top_server.grouping import GROUPINGS, GroupingRequest, Plan
from top_server.grouping_service import assign
from top_server.groups import initial
from top_server.groups.run import survey
from top_server.groups.task import GroupTask
from top_server.merging import MERGES, MergeSettings, Merging
from top_server.models import Models
from top_server.nodes.declared import names_of
from top_server.optimization import check_model
from top_server.profiles import PROFILES
from top_server.progress import Progress
from top_server.record import checkpoints
from top_server.record.directory import RunDirectory, prepare, write_config
from top_server.record.events.alone import LocalRoundFinished, LocalRunStarted
from top_server.record.events.base import ABSENT
from top_server.record.events.run import NoBestModel, RunResumed, RunStarted, StoppedEarly
from top_server.record.history import last_line
from top_server.record.journal import Journal, Line
from top_server.record.machine import note_machine
from top_server.record.scores import rating_of
from top_server.record.summary import write_summary
from top_server.resume import extend, state
from top_server.resume.find import Resumed
from top_server.run import Assign, RunContext
from top_server.schemes import SCHEMES, Scheme


async def play(
    context: RunContext,
    progress: Progress,
    merging: Merging,
    directory: RunDirectory,
    resumed: Resumed | None = None,
) -> dict[str, Any]:
    """Plays and records all rounds of a run, or the remaining ones; returns the last row of its history."""
    config, scheme, membership = context.config, context.scheme, context.membership
    part = PROFILES[scheme.profile]
    profile = part.load()(context, progress, merging, part.read(scheme.given("profile")))
    try:
        if resumed and resumed.saved:
            await state.restore(context, progress, merging, profile, resumed.saved)
        if resumed and resumed.extends:
            await extend.check_kept(context, progress, merging, resumed.round)
            # First of all: cut off before its event, the run is still a finished one, whatever config.toml says of
            # `rounds`; cut off after its event, it is resumed with these settings.
            write_config(directory, config, context.audit)
        kind = RunResumed if resumed else RunStarted
        context.journal.record(
            kind(
                run=context.run_id,
                directory=str(Path.cwd()),
                round=resumed.round if resumed else 0,
                clients=len(membership.clients),
                nodes=membership.nodes,
                rounds=config.rounds,
                scheme=config.scheme,
                head=[spec.name for spec in membership.tensors if spec.head and scheme.without_head],
                constants={name: digest.hex() for name, digest in (membership.constants or {}).items()},
                task_options=dict(membership.standard.task_options) or ABSENT,
                commit=await asyncio.to_thread(commit) or ABSENT,
            )
        )
        if resumed and resumed.extends:
            context.audit.note("extended", rounds=config.rounds)
            state.reopen(directory)
        check_head(scheme, membership.tensors)
        first = membership.standard
        check_additions(scheme, first.features, first.tensors, membership.tensors)
        check_model(config, scheme, first)
        if not (resumed and resumed.saved):
            await initial.begin(context, progress)
            context.models.apply(merging.prepare(context.models.slots))
            await state.save(context, progress, merging, profile, directory, 0, {})
        number, interrupted = (resumed.round, resumed.interrupted) if resumed else (0, None)
        while not is_last(config, progress.best, number):
            number += 1
            context.door.reach(context.run_id, number)
            row = await rounds.play(context, progress, merging, profile, number, interrupted)
            progress.best = after_row(progress.best, row, config.evaluate_every, membership.scoring)
            context.audit.seal(context.run_id, number)
            last = is_last(config, progress.best, number)
            files = await checkpoints.save(context, progress, merging, directory.models, number, last)
            if not last or config.keep_state == BEYOND:
                await state.save(context, progress, merging, profile, directory, number, files)
    finally:
        profile.close()
    if number < config.rounds:
        context.journal.record(StoppedEarly(round=number, best=progress.best.round))
    if config.validates and progress.best.score is None:
        reason = "see the events not_validated and metric_left_out, and the logs of the nodes"
        context.journal.record(NoBestModel(reason=reason))
    progress.absences.came_back(number, membership.departures.take_returned())
    names, ends = names_of(membership.hellos), resumed.ends if resumed else ()
    write_summary(directory, context.journal, names, progress.best, ends, progress.absences.together())
    return last_line(directory.history)


async def play_alone(context: RunContext, store: ModelStore, channels: Channels) -> None:
    """Plays the local run before the run that needs it, on the same nodes."""
    config, journal = context.config, context.journal
    begin, settings = time.monotonic(), local_run.settings(config)
    local_run.set_aside(config)
    directory = prepare(settings)
    journal.record(LocalRunStarted(directory=str(directory.path), rounds=settings.rounds))

    def tell(event: Line) -> None:
        if event["event"] == "round_finished":
            journal.record(
                LocalRoundFinished(
                    round=event["round"],
                    rounds=settings.rounds,
                    accuracy=event["accuracy"],
                    seconds=event["seconds"],
                    **rating_of(event),
                )
            )

    with Journal(directory) as own_journal:
        note_machine(directory)
        own_journal.subscribe(tell)
        scheme = SCHEMES["independent"]
        own = dataclasses.replace(
            context,
            run_id=local_run.run_id(context.run_id),  # models of both runs are in the same stores at the same time
            config=settings,
            scheme=scheme,
            assign=assign_by(scheme, channels),
            models=Models(store),
            journal=own_journal,
            turns=None,
            times=0,
        )
        progress, merging = Progress(), merging_of(own)
        row = await play(own, progress, merging, directory)
        holdings = own.holdings({})
        models = [merging.of(client, holdings.slots) for client in merging.clients(holdings)]
        at_home = {held.client: held for held in models if held.client is not None}
        await survey(own, progress, settings.rounds, GroupTask(0, "forget", tuple(at_home), own_starts=at_home))
        own.models.apply(dict.fromkeys(own.models.slots))
        # The run gets new managers: an order of the local run that is still on its way must not reach it.
        await own.managers.close()
        finish(directory, own_journal, settings, row, begin)


def merging_of(context: RunContext) -> Merging:
    """The merge of the scheme, at its beginning."""
    scheme, part = context.scheme, MERGES[context.scheme.merge]
    merging: Merging = part.load()(
        MergeSettings(context.run_id, context.config.seed, scheme.lasts, part.read(scheme.given("merge")))
    )
    return merging


async def _ask(channels: Channels, address: str, grouping: str, request: GroupingRequest) -> Plan:
    return await assign(await channels.to(address, Identity(Role.GROUPING_SERVICE)), address, grouping, request)


def assign_by(scheme: Scheme, channels: Channels) -> Assign:
    """How the run asks for its groups: the grouping service of the scheme, or the grouping in this process."""
    if scheme.service:
        return functools.partial(_ask, channels, scheme.service, scheme.grouping)
    return lambda asked: asyncio.to_thread(GROUPINGS[scheme.grouping], asked)  # in a thread, so that streams go on
