"""What every profile does."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fedgsp.messages import Evaluated
from top_server.evidence import Evidence
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.models import Held
from top_server.run import AllLostError, unanswered

if TYPE_CHECKING:
    from pathlib import Path

    from top_server.run import Run

#: Programs in which nobody counts samples.
UNCOUNTED = ("distance",)


class Profile(abc.ABC):
    """Gathers evidence before every round."""

    #: Options of --grouping-option that it reads.
    options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, run: Run) -> None:
        self.run = run

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Any:
        """What its options say; ConfigError for one that cannot be."""
        return None

    @abc.abstractmethod
    async def gather(self, round_number: int) -> Evidence:
        """What is known of the clients that are there; one that tells nothing is left out, and the reason recorded.

        May be asked again in the same round if it raises AllLostError.
        """

    def save(self) -> dict[str, Any]:
        """What it knows, as JSON; beside that it may `write`."""
        return {}

    def restore(self, saved: Mapping[str, Any]) -> None:  # noqa: B027 (most know nothing)
        """Puts it where it was; `load` comes after."""

    def write(self, folder: Path) -> None:  # noqa: B027 (most need no files)
        """Puts what is large into files of this folder; for a thread, while no round is played."""

    def load(self, folder: Path) -> None:  # noqa: B027
        """Takes it from there; the same."""

    def close(self) -> None:  # noqa: B027 (most have nothing to give back)
        """The run is over."""


async def survey(run: Run, round_number: int, task: GroupTask) -> GroupOutcome:
    """Raises AllLostError if nobody who is there answers, as all are lost: what is known of them may still be true."""
    outcome = await run.survey(round_number, task)
    if not outcome.done and set(run.membership.clients) <= set(task.clients):
        error = unanswered(f"no client told its profile ({task.program})", outcome.failures)
        if isinstance(error, AllLostError):
            raise error
    return outcome


async def evaluate(
    run: Run,
    round_number: int,
    program: str,
    clients: Iterable[int],
    start: tuple[tuple[Held, float], ...],
    own_starts: Mapping[int, Held] | None = None,
) -> dict[int, Evaluated]:
    """Answers of those clients that gave one; what is told of no samples is none, as it has no mean."""
    task = GroupTask(0, program, tuple(clients), start, own_starts or {})
    outcome = await survey(run, round_number, task)
    answers = {done.client: done.result for done in outcome.done if isinstance(done.result, Evaluated)}
    return {client: answer for client, answer in answers.items() if answer.samples or program in UNCOUNTED}
