"""The protocol of profiles: what clients reveal of themselves before they are grouped."""

import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedgsp.messages import Evaluated, Failure, FailureCode
from fedgsp.programs import PROGRAMS
from top_server.evidence import Evidence
from top_server.groups.lost import AllLostError, unanswered, usual
from top_server.groups.run import survey
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.merging import Merging
from top_server.merging.base import Starts
from top_server.models import Held
from top_server.progress import Progress
from top_server.remembered import restore_of, saved_of
from top_server.reveals.updates import Reveals
from top_server.run import RunContext

Options = TypeVar("Options")
#: Why there is no evidence about a client that did not fail.
_NOTHING_KNOWN = Failure(FailureCode.UNSPECIFIED, "nothing is known of it by which it could be grouped")


@dataclass(frozen=True, slots=True)
class Answers:
    """What clients answered to a question."""

    #: By client; without answers for no samples where samples are counted.
    given: Mapping[int, Evaluated] = field(default_factory=dict)
    #: Clients that gave none although they were asked: what they were asked about may not be on their nodes any more.
    refused: frozenset[int] = frozenset()


@dataclass(eq=False)
class Profile(abc.ABC, Generic[Options]):
    """The protocol of profiles: gathers evidence about the clients before every round.

    There is one object for a run. Order of calls: the constructor; after `--resume`, `restore` and `load`; then
    `gather` before every round, and `save` and `write` after it; `close` at the end, also if the run fails. All calls
    but `write` and `load` come in the event loop: long work belongs into a thread. The same answers of clients must
    give the same evidence: what is random comes from `fedgsp.seeds.stream(context.config.seed, NAME, round_number)`. A
    resumed run must go on to the same bits, so that everything that a later round needs is in `save` or `write`.
    """

    context: RunContext
    progress: Progress
    merging: Merging
    options: Options
    #: Clients that were there when `gather` began -> why there is no evidence about one, if there is none.
    silent: dict[int, Failure] = field(init=False, default_factory=dict)

    def begin_gathering(self) -> None:
        """Is called before every `gather`: nothing is known yet of the clients that are there."""
        self.silent = dict.fromkeys(self.context.membership.clients, _NOTHING_KNOWN)

    @abc.abstractmethod
    async def gather(self, round_number: int) -> Evidence:
        """The evidence about the clients that are present.

        A client that gave no usable answer is left out, and the reason is recorded. It is also the reason for which
        the client missed the round: `ask` puts it into `silent` if an answer did not come. May be called again in the
        same round if it raised AllLostError.
        """

    @property
    def histograms(self) -> Mapping[int, tuple[int, ...]]:
        """The class histogram of each client that reported one, whether it is still present or not."""
        return {}

    @property
    def reveals(self) -> Reveals | None:
        """Where the updates go that clients reveal while they train; None if they reveal nothing."""
        return None

    def save(self) -> dict[str, Any]:
        """What it must remember, as JSON: its `remembered` fields; large data goes to files (see `write`)."""
        return saved_of(self)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Puts a new profile where `save` was called; `load` comes after. Raises KeyError, TypeError or ValueError."""
        restore_of(self, saved)

    def write(self, folder: Path) -> None:
        """Writes large data into files of this folder. Runs in a thread while no round is played."""

    def load(self, folder: Path) -> None:
        """Reads the files that `write` left here. Runs in a thread, before the first round of a resumed run."""

    def close(self) -> None:
        """Gives back memory and disk: the run is over."""

    async def ask(self, round_number: int, task: GroupTask, reveals: Reveals | None = None) -> GroupOutcome:
        """Asks clients; raises AllLostError if nobody answers although all were asked, and some were out of reach.

        What was known of them before may still be true, so the round can be tried again.
        """
        outcome = await survey(self.context, self.progress, round_number, task, reveals=reveals)
        self.silent.update(outcome.unanswered)
        asked_all = set(self.context.membership.clients) <= set(task.clients)
        if asked_all and not outcome.done and outcome.out_of_reach:
            what = f"no client reported its profile ({task.program}): {usual(outcome.failures)}"
            raise AllLostError(what, unanswered(what, outcome.failures).remedy)
        return outcome

    async def evaluate(
        self,
        round_number: int,
        program: str,
        clients: Iterable[int],
        start: Starts,
        own_starts: Mapping[int, Held] | None = None,
    ) -> dict[int, Evaluated]:
        """Answers by client, without clients that reported no samples where samples are counted."""
        return dict((await self.answers(round_number, program, clients, start, own_starts)).given)

    async def answers(
        self,
        round_number: int,
        program: str,
        clients: Iterable[int],
        start: Starts,
        own_starts: Mapping[int, Held] | None = None,
    ) -> Answers:
        """As `evaluate`; it also tells who gave no answer for a reason of its own."""
        outcome = await self.ask(round_number, GroupTask(0, program, tuple(clients), start, own_starts or {}))
        answers = {done.client: done.result for done in outcome.done if isinstance(done.result, Evaluated)}
        counted = PROGRAMS[program].counts_samples
        given = {client: answer for client, answer in answers.items() if answer.samples or not counted}
        return Answers(given, frozenset(outcome.task.clients).difference(given, outcome.out_of_reach))

    def start(self, clients: Iterable[int]) -> Starts:
        """The models that a group of these clients would start from."""
        return self.merging.start(clients, self.context.holdings(self.progress.local_models))


#: A profile, whatever its options.
AnyProfile = Profile[Any]
