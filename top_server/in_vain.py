"""What follows if a round trained nobody: another try, the next round, or the end of the run."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from fedgsp.errors import RunError
from top_server.groups.lost import AllLostError, unanswered, usual
from top_server.groups.moved import NOTHING, Moved
from top_server.groups.run import MOST_NUMBERED, MOST_TRIES
from top_server.groups.task import GroupOutcome
from top_server.progress import Progress
from top_server.record.events.rounds import TrainedNobody
from top_server.run import RunContext

logger = logging.getLogger(__name__)

#: The run ends after so many rounds in a row that trained nobody, although some whom they asked were there.
MOST_IN_VAIN = 3


@dataclass(frozen=True, slots=True)
class Tries:
    """The tries of a round before the present one: clients were lost, and nobody trained."""

    number: int = 0
    #: How many of them failed although no node has left: the round itself may be the cause.
    counted: int = 0
    #: What was moved in them.
    moved: Moved = NOTHING

    def give_up(self, gone: bool) -> bool:
        """Whether to go on with the next round if the present try fails, too. Others are there, who were not asked.

        `gone`: all clients that were asked have refused or are away. They were given the time to come back before the
        second try.
        """
        last = self.number + 1 == MOST_NUMBERED or self.counted + 1 == MOST_TRIES
        return last or (gone and self.number > 0)


FIRST_TRY = Tries()


async def note_in_vain(
    context: RunContext, progress: Progress, number: int, outcomes: Sequence[GroupOutcome], tries: Tries
) -> None:
    """Notes that a round trained nobody; raises RunError if the next one would not, either.

    The clients of one round may all fail, leave, or work against the run, while others are there that were not asked.
    Raises AllLostError if the same round is to be tried again.
    """
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    reason = f"round {number} trained nobody: {usual(failures) if failures else 'it has no groups'}"
    error = unanswered(reason, failures)
    lost = isinstance(error, AllLostError)
    asked = {client for outcome in outcomes for client in outcome.task.clients}
    there = asked.intersection(context.membership.clients)
    if lost:
        gone = not there.difference(*(outcome.refused for outcome in outcomes))
        goes_on = tries.give_up(gone) and not asked.issuperset(context.membership.clients)
    else:
        goes_on = await _others_come(context, asked, reason)
    if not goes_on:
        if isinstance(error, AllLostError):
            error.moved = sum((outcome.moved for outcome in outcomes), NOTHING)
        raise error
    if there or not lost:
        progress.in_vain += 1
    if progress.in_vain == MOST_IN_VAIN:
        raise RunError(f"{reason}; nor did the {MOST_IN_VAIN - 1} rounds before it", error.remedy)
    context.journal.record(TrainedNobody(round=number, reason=reason))
    logger.warning("%s; the run goes on with the models that it has", reason)


async def _others_come(context: RunContext, asked: set[int], reason: str) -> bool:
    """Whether clients are there that were not asked; if none is, it waits for those that are away."""
    membership, wait_s = context.membership, 0.0

    def there() -> bool:
        return not asked.issuperset(membership.clients)

    if not there() and membership.departures.clients.difference(asked, membership.left_out):
        wait_s = context.config.join_timeout
        logger.warning("%s; waiting for clients that are away, at most %.0f s", reason, wait_s)
    return await membership.until(there, wait_s)
