"""Adds rounds to a finished run: what is refused, since the bits of a longer run could not be had, and the begin."""

import logging
from collections.abc import Iterator

from fedgsp.errors import ConfigError, RunError
from fedgsp.messages import Evaluated, Failure, FailureCode
from fedgsp.schedules import plan
from fedgsp.settings.run import RunConfig
from top_server.grouping.request import listed
from top_server.groups.lost import usual
from top_server.groups.run import survey
from top_server.groups.task import GroupTask
from top_server.merging import Merging
from top_server.models import Held
from top_server.profiles import PROFILES
from top_server.profiles.options import PriorOptions
from top_server.progress import Progress
from top_server.run import RunContext
from top_server.schemes import Scheme

logger = logging.getLogger(__name__)


def check(config: RunConfig, scheme: Scheme, done: int, rounds: int) -> None:
    """Raises ConfigError unless a run of `rounds` rounds would have played these `done` rounds as this run did.

    `config` are the settings of the run as it was.
    """
    for wrong, what, remedy in _refusals(config, scheme, done, rounds):
        if wrong:
            raise ConfigError(f"--extend: {what}", remedy)


def _refusals(config: RunConfig, scheme: Scheme, done: int, rounds: int) -> Iterator[tuple[bool, str, str]]:
    yield rounds <= done, f"--rounds is {rounds}, and the run has {done} rounds", "give the number of all rounds"
    yield (
        done < config.rounds,
        f"the run ended early after round {done} (--patience {config.patience}), and so would a longer one",
        "start a run with a larger --patience",
    )
    horizon = plan(config.schedule, config.schedule_option).horizon
    yield (
        horizon is not None and rounds > horizon,
        f"--rounds is {rounds}, and --schedule {config.schedule} of the run ends at its horizon, round {horizon}",
        f"give --rounds {horizon}, or start a run with --schedule-option horizon={rounds}"
        if horizon is not None and horizon > done
        else f"start a run with --schedule-option horizon={rounds}",
    )
    yield (
        horizon is None and not config.learning_rate_in(rounds) > 0,
        f"the learning rate is 0 before round {rounds}",
        "give fewer rounds",
    )
    priors = PROFILES[scheme.profile].read(scheme.given("profile"))
    yield (
        isinstance(priors, PriorOptions) and priors.prior_epochs is None,
        f"profile {scheme.profile} let clients train alone for as many epochs as the run had in all, and a run of"
        f" {rounds} rounds has more",
        "start a run with --profile-option prior_epochs=...",
    )
    yield (
        config.local_run is not None,
        f"the run is compared with {done} rounds of training alone (--local-run), and not with {rounds}",
        "start a run of that length",
    )


async def check_kept(context: RunContext, progress: Progress, merging: Merging, number: int) -> None:
    """Raises RunError if nodes lack what they kept for their clients in the finished run, or cannot say so now.

    They are asked to evaluate the models of their clients: an answer says whether a head, a personal model or the
    state of an optimiser had to be begun anew.
    """
    there, slots = context.membership.clients, context.models.slots
    used = {client: merging.of(client, slots) for client in there if not merging.untrained(client, slots)}
    asked = {client: held for client, held in used.items() if client in progress.began or held.client is not None}
    own = {client: held for client, held in progress.local_models.items() if client in there}
    lost, silent = set[int](), dict[int, Failure]()
    for models in filter(None, (asked, own)):
        lacking, unknown = await _lacking(context, progress, number, models)
        lost |= lacking
        silent |= unknown
    if lost:
        raise RunError(
            f"--extend: the nodes of clients {listed(lost)} do not have what they kept for them in the run",
            "start these nodes with the --state-dir that they had in the run, then give the command again",
        )
    if silent:
        raise RunError(
            f"--extend: clients {listed(silent)} did not say whether their nodes have what they kept for them in the"
            f" run: {usual([*silent.values()])}",
            "mend the cause, then give the command again",
        )


async def _lacking(
    context: RunContext, progress: Progress, number: int, models: dict[int, Held]
) -> tuple[set[int], dict[int, Failure]]:
    """The clients for which something is lost, and those that could not answer now, with the reasons."""
    began = set(progress.began)
    task = GroupTask(0, "evaluate", tuple(sorted(models)), own_starts=models)
    outcome = await survey(context, progress, number, task)
    gone = {client for client, why in outcome.unanswered.items() if why.code is FailureCode.NO_SUCH_MODEL}
    anew = {one.client for one in outcome.done if isinstance(one.result, Evaluated) and one.result.afresh}
    reasons, refused = outcome.unanswered, outcome.refused - gone
    for client in sorted(refused):  # for good, as by a policy without `evaluate`: nobody will ever know
        logger.warning("client %d does not say whether its node still has what it kept: %s", client, reasons[client])
    silent = {client: why for client, why in reasons.items() if client not in gone | refused}
    return gone | (anew & began), silent
