"""What every merge does."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fedgsp.messages import Failure, Results
from top_server.evidence import Evidence
from top_server.models import Held

if TYPE_CHECKING:
    from top_server.groups.task import GroupOutcome
    from top_server.run import Run

Starts = tuple[tuple[Held, float], ...]


class Merging(abc.ABC):
    """Decides by slots of `run.models`; called in this order: prepare; per round begin, start, take, finish, of."""

    #: Where the models of clients that train alone stay, if these need no manager each; None if they do.
    alone: ClassVar[Results | None] = None
    #: Whether all clients have the same model.
    shared: ClassVar[bool] = False
    #: Options of --grouping-option that it reads.
    options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, run: Run) -> None:
        self.run = run
        #: Clients that start afresh in the next round, since their models were lost in this one.
        self.afresh: set[int] = set()

    async def prepare(self) -> None:  # noqa: B027 (not all have something to do)
        """Before the first round; the initial model is there."""

    async def begin(self, round_number: int, evidence: Evidence) -> None:  # noqa: B027
        """Before the groups of a round start."""

    @abc.abstractmethod
    def start(self, group: Iterable[int]) -> Starts:
        """The models, with their weights, whose mean a group starts from."""

    @abc.abstractmethod
    async def take(self, round_number: int, outcome: GroupOutcome) -> Failure | None:
        """Takes in what a group did, in the order of the groups; why its result could not be had, or None."""

    async def finish(self, round_number: int) -> None:  # noqa: B027
        """After the last group; called only if at least one result was taken."""

    def note_lost(self, outcome: GroupOutcome) -> None:  # noqa: B027
        """A group was to use models that nodes hold, and some may be lost."""

    @abc.abstractmethod
    def of(self, client: int) -> Held:
        """The model that a client would use now."""

    def welcome(self, clients: Iterable[int], held: Held) -> None:  # noqa: B027
        """Gives newcomers a model to start from, where it is not one that they share."""

    def untrained(self, client: int) -> str:
        """Why the model that a client would use is one that nobody trained; empty if somebody did."""
        return ""

    def clients(self) -> Iterable[int]:
        """The clients that have a model, whether they are there or not."""
        return self.run.membership.clients

    def save(self) -> dict[str, Any]:
        """What it knows beside the models, as JSON."""
        return {}

    def restore(self, saved: Mapping[str, Any]) -> None:  # noqa: B027
        """Puts it where it was."""

    def group_model_id(self, round_number: int, name: object) -> str:
        """The id of a model made in a round."""
        return f"{self.run.run_id}/{round_number}/{name}"
