"""The top server's main coroutine: open the doors, wait for nodes, play the rounds, close up."""

import dataclasses
import logging
import secrets
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import UTC, datetime

from fedgsp import on_nodes
from fedgsp.connections.addresses import loopback, split_address
from fedgsp.connections.channels import Channels
from fedgsp.errors import UserError
from fedgsp.identity import TOP_SERVER, Role
from fedgsp.messages import Leave, RelayMode
from fedgsp.parts import guarded
from fedgsp.processes.awake import Awake, always
from fedgsp.processes.lifecycle import beside
from fedgsp.security.signing import Signer, why_not_trusted
from fedgsp.security.tickets import Door, Issuer, new_key
from fedgsp.security.tls import Tls, load
from fedgsp.seeds import derive
from fedgsp.settings.flags import arguments_of
from fedgsp.settings.managers import ManagerSettings
from fedgsp.settings.placing import LOCAL
from fedgsp.settings.run import RunConfig
from fedgsp.transfers import pipes
from fedgsp.transfers.model_store import ModelStore
from fedgsp.visible import visible
from top_server import doors, silence
from top_server.asked import asked
from top_server.baseline import local_run
from top_server.best import check_validation, told_validation
from top_server.choosing import absent, additions, choose, ignored, parts_of
from top_server.ending import finish
from top_server.federation.opening import Federated, certify
from top_server.groups import initial
from top_server.managers.here import LauncherHere, launching_here
from top_server.managers.launching import Launcher
from top_server.managers.pool import manager_pool
from top_server.metrics import monitored
from top_server.models import Models
from top_server.needs import check_task
from top_server.nodes.declared import lacked_by_all
from top_server.nodes.membership import Membership
from top_server.nodes.waiting import wait_for_all, wait_for_nodes, wait_for_return
from top_server.optimization import told_horizon
from top_server.placing import local
from top_server.placing.opening import Workers
from top_server.playing import assign_by, merging_of, play, play_alone
from top_server.progress import Progress
from top_server.record.directory import RunDirectory, make_state, usable
from top_server.record.events.base import ABSENT
from top_server.record.events.run import (
    Listening,
    StateDamaged,
)
from top_server.record.journal import Journal
from top_server.record.machine import note_machine
from top_server.resume import state
from top_server.resume.audit import opened
from top_server.resume.find import Resumed
from top_server.run import RunContext
from top_server.settling import settle
from top_server.turns import Turns

logger = logging.getLogger(__name__)

#: Time for nodes to leave when the run is over.
DISMISS_TIMEOUT_S = 10.0


def credentials(config: RunConfig) -> Tls | None:
    """The certificate of this process; raises ConfigError if it does not cover the addresses that others dial."""
    certify(config)
    tls = load(config.tls_files)
    if tls:
        tls.check_is(Role.TOP_SERVER)
        tls.check_covers(loopback(split_address(config.listen)[0]), "where the top server dials its group managers")
        if config.metrics is not None:
            tls.check_covers(loopback(split_address(config.metrics)[0]), "where --metrics listens")
        if config.placed == LOCAL and config.federation is None:
            tls.check_covers(local.HOST, "where local nodes are dialled")
    return tls


async def run(config: RunConfig, journal: Journal, tls: Tls | None, resumed: Resumed | None = None) -> None:
    """Plays a run, or the rest of one, into its prepared `run_dir`; raises UserError if it cannot be finished."""
    assert config.run_dir is not None
    directory = RunDirectory(config.run_dir)
    with usable(directory, "the record in"):
        directory.logs.mkdir(exist_ok=True)
        make_state(directory)  # before a local node makes a folder in it
    note_machine(directory)
    begin = time.monotonic()
    pipes.choose(config.hand_over)
    scheme = choose(config)
    for phrase in ignored(config, scheme) if resumed is None else ():
        logger.warning(phrase)
    run_id = resumed.run_id if resumed else secrets.token_hex(4)
    workers = Workers(config, run_id)
    config, connected = workers.config, workers.connected
    if workers.remote:
        tls = credentials(connected)
    signer = Signer(tls.key, tls.cert) if tls else None
    issuer = Issuer(new_key())  # a resumed run has another key: its nodes get it when they join again
    async with AsyncExitStack() as stack:
        done, extends = (resumed.round, resumed.extends) if resumed else (0, False)
        log = opened(directory, run_id, signer, tls.ca if tls else None, resumed is not None, done, extends)
        audit = stack.enter_context(log)
        began, awake = datetime.now(UTC), Awake(always)
        await stack.enter_async_context(beside(awake.keep_looking(), "clock"))
        await stack.enter_async_context(beside(silence.watch(journal), "silence"))
        channels = await stack.enter_async_context(Channels(tls, config.lost_after, config.insecure))
        membership = Membership(
            run_id,
            config.task,
            RelayMode[config.relay.upper()],
            journal,
            issuer,
            config.task_option,
            on_nodes.needed(
                {
                    "training": [scheme.training],
                    "optimizer": [scheme.optimizer],
                    "schedule": [config.local_schedule],
                    "outgoing": config.outgoing,
                }
            ),
            additions(config, scheme),
            audit=audit,
            constants_seed=derive(config.seed, "initial-weights"),
            awake=awake,
        )
        membership.placed = workers.placed
        store = ModelStore()
        if resumed:
            membership.offences.update(resumed.offences)
        if resumed and resumed.saved:
            membership.own(resumed.saved.owners)
            membership.saved_constants = resumed.saved.constants
            membership.departures.restore(resumed.saved.away)
        federated, door = Federated(connected, membership, journal, audit), Door(issuer.key_of(TOP_SERVER))
        # Nodes look for a resumed run at its old address. Those of a finished run have ended. Workers on other
        # machines are started anew, and the top server itself may be on another machine now.
        hosts = workers.hosts(issuer, lambda: (hello.node for hello in membership.hellos))
        at = resumed.address if resumed and not resumed.extends and not workers.remote else ""
        watched = await stack.enter_async_context(monitored(config, journal, tls))
        address, probed = await stack.enter_async_context(
            doors.opened(connected, membership, store, door, tls, federated, audit, asked(config, scheme), hosts, at)
        )
        journal.record(Listening(address=address, metrics=watched.address or ABSENT))
        for what in resumed.saved.damaged if resumed and resumed.saved else ():
            journal.record(StateDamaged(reason=what))
        launcher: Launcher | None = hosts
        if launcher is None:
            launcher = await stack.enter_async_context(_launching_here(connected, run_id, address, issuer))
        managers = await stack.enter_async_context(
            manager_pool(
                launcher,
                channels,
                journal,
                issuer,
                # A node may still dial an old manager of the same number. A certificate is good for one name alone.
                (f"{run_id}-" if hosts else "") + (f"r{resumed.times}" if resumed else ""),
            )
        )
        await stack.enter_async_context(federated.followed(managers))
        nodes_may_end = await stack.enter_async_context(workers.running(address, journal))
        finished, reason = False, "the top server stopped"
        try:
            if resumed and resumed.saved and resumed.extends:
                await wait_for_all(resumed.saved.clients, membership, journal, config.join_timeout)
            elif resumed and resumed.saved:
                await wait_for_return(resumed.saved.nodes, membership, journal, config.join_timeout)
            else:
                await wait_for_nodes(config, membership, journal, lambda: initial.check(config, scheme, membership))
                hosted = membership.clients.values()
                check_validation(config, hosted)
                for line in (*told_validation(config, hosted), *told_horizon(config, scheme, hosted)):
                    logger.info(line)
            await probed.give_way(lambda: managers.addresses)
            if not resumed:
                config, scheme = settle(config, len(membership.clients), directory, journal, audit)
            check_task(config, scheme, lacked_by_all(membership.hellos))
            context = RunContext(
                run_id=run_id,
                config=config,
                scheme=scheme,
                address=address,
                membership=membership,
                managers=managers,
                assign=assign_by(scheme, channels),
                models=Models(store),
                door=door,
                journal=journal,
                audit=audit,
                why_not_trusted=lambda shown: why_not_trusted(shown, channels.ca, datetime.now(UTC), began),
                turns=_turns(config, journal, resumed),
                times=resumed.times if resumed else 0,
            )
            if config.local_run is not None:
                if not local_run.recorded(config):
                    await play_alone(context, store, channels)
                alone = local_run.recorded(config) or {}
                local_run.check_score(config, membership.scoring.score)
                local_run.tell_left_out(config, membership.clients, alone, journal)
                context = dataclasses.replace(context, alone=alone)
            if away := absent(scheme, membership.clients):
                logger.warning("--grouping-option is for clients that are not there: %s", ", ".join(map(str, away)))
            with guarded(parts_of(scheme).values()):
                row = await play(context, Progress(), merging_of(context), directory, resumed)
            finished, reason = True, "the run is finished"
        except UserError as error:
            reason = str(error)
            raise
        finally:
            watched.failure = "" if finished else reason  # while nodes are dismissed
            nodes_may_end()
            leave = Leave(finished, reason, resumable=not finished and state.is_in(directory))
            try:
                await membership.dismiss(leave, DISMISS_TIMEOUT_S)
            finally:  # who stops this process while its nodes leave stops a run that may be finished
                audit.close(finished, visible(reason))
                if finished:
                    finish(directory, journal, config, row, begin)


def _launching_here(
    connected: RunConfig, run_id: str, address: str, issuer: Issuer
) -> AbstractAsyncContextManager[LauncherHere]:
    """Managers beside this process, which listen on the same host."""
    assert connected.run_dir is not None
    return launching_here(
        split_address(address)[0],
        connected.manager_port_range,
        RunDirectory(connected.run_dir).logs,
        arguments_of(ManagerSettings(**connected.for_children, run=run_id)),
        issuer.run_key,
    )


def _turns(config: RunConfig, journal: Journal, resumed: Resumed | None) -> Turns | None:
    """How long the clients took, from the record so far and from all that is recorded from now on."""
    if config.balance is None:
        return None
    turns = resumed.turns if resumed else Turns()
    journal.subscribe(turns.note)
    return turns
