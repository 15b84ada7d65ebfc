"""What follows if a round trained nobody: another try, the next round, or the end of the run."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from fedgsp.errors import RunError
from fedgsp.messages import Failure
from top_server.groups.lost import AllLostError, unanswered, usual
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

    def give_up(self, gone: bool) -> bool:
        """Whether to go on with the next round if the present try fails, too. Others are there, who were not asked.

        `gone`: all clients that were asked are away. They were given the time to come back before the second try.
        """
        last = self.number + 1 == MOST_NUMBERED or self.counted + 1 == MOST_TRIES
        return last or (gone and self.number > 0)


FIRST_TRY = Tries()


def note_in_vain(
    context: RunContext,
    progress: Progress,
    number: int,
    outcomes: Sequence[GroupOutcome],
    failures: Sequence[Failure],
    tries: Tries,
) -> None:
    """Notes that a round trained nobody; raises RunError if the next one would not, either.

    The clients of one round may all fail, leave, or work against the run, while others are there that were not asked.
    Raises AllLostError if the same round is to be tried again.
    """
    reason = f"round {number} trained nobody: {usual(failures) if failures else 'it has no groups'}"
    error = unanswered(reason, failures)
    lost = isinstance(error, AllLostError)
    asked = {client for outcome in outcomes for client in outcome.task.clients}
    there = set(context.membership.clients)
    gone = lost and not asked & there
    if asked >= there or (lost and not tries.give_up(gone)):
        raise error
    if not gone:
        progress.in_vain += 1
    if progress.in_vain == MOST_IN_VAIN:
        raise RunError(f"{reason}; nor did the {MOST_IN_VAIN - 1} rounds before it", error.remedy)
    context.journal.record(TrainedNobody(round=number, reason=reason))
    logger.warning("%s; the run goes on with the models that it has", reason)
