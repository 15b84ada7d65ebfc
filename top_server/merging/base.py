"""The protocol of merges: which model a group starts from, and what becomes of the models that groups trained.

A merge is given weights and gives weights. It asks nobody and waits for nobody: what it needs to know of the run is an
argument. `Holdings`, `Changes` and the names of slots are those of `top_server.models`.
"""

import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgsp.messages import Results
from fedgsp.tensors.weights import Weights
from top_server.evidence import Evidence
from top_server.models import Changes, Held, Holdings
from top_server.remembered import restore_of, saved_of

#: Models with their weights; a group starts from their weighted mean, or from the model itself if there is only one.
Starts = tuple[tuple[Held, float], ...]
#: What a merge knows beside the models of slots: a part that fits JSON, and named tensors of any dtype.
State = tuple[Mapping[str, Any], Mapping[str, NDArray[np.generic]]]


@dataclass(frozen=True, slots=True)
class MergeSettings:
    """What a merge knows of its run from the beginning."""

    run_id: str
    seed: int
    #: Whether groups stay the same groups from round to round (see `Scheme.lasts`).
    lasts: bool
    #: The options of the merge, as its declaration describes them.
    options: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class MemberModel:
    """What one member of a group trained."""

    #: The id of the model, and the client whose node has it.
    held: Held
    #: Training samples behind it.
    samples: int
    #: The weights, if the models of the members were collected (`Merging.alone`).
    weights: Weights | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GroupModel:
    """What a group trained in a round."""

    #: The place of the group among the groups of the round; every group of a round has another.
    number: int
    #: The clients that the group was formed of.
    clients: tuple[int, ...]
    #: The clients whose training is in the result.
    trained: frozenset[int]
    #: Training samples behind `weights`.
    samples: int
    #: The model of the group; None if its members trained alone.
    weights: Weights | None
    #: Member -> its own model, in ascending order; only members whose node told the id of that model.
    members: Mapping[int, MemberModel]


@dataclass(eq=False)
class Merging(abc.ABC):
    """One merge of one run.

    Order of calls: `prepare` or `restore` once. In every round `begin`, `start` for each group, `lose` and `fold` for
    each group in the order of the groups, `finish`. A round that is tried again begins with `begin` again. `finish` is
    left out if `fold` was not called. `of`, `untrained`, `clients`, `welcome` and `start` may come between rounds.
    `begin`, `fold` and `finish` may take long: they run in a thread, one at a time, and nothing else is called
    meanwhile.

    What is kept from round to round must be saved: in fields made by `top_server.remembered.remembered`, or by `state`
    and `restore`. Any other attribute is lost when a run is resumed, which then has other bits. In round 2, a warning
    names such attributes of a merge of a package.

    A merge must give the same bits for the same calls, whatever the timing: what is random comes from
    `fedgsp.seeds.stream(settings.seed, ...)`. The weights that it is given must not be changed.
    """

    #: Which models come here when clients train alone. RETAINED: none, as they stay on the nodes of the clients.
    #: COLLECTED: the model of each client. None: a client that trains alone is a group like any other, and the model
    #: of the group comes here.
    alone: ClassVar[Results | None] = None
    #: Whether all clients have the same model.
    shared: ClassVar[bool] = False

    settings: MergeSettings

    def prepare(self, slots: Mapping[str, Held]) -> Changes:
        """Changes before the first round; the slot `INITIAL` is there."""
        return {}

    def reads(self, evidence: Evidence) -> Iterable[str]:
        """The slots of this process whose weights `begin` needs in this round."""
        return ()

    def begin(self, round_number: int, evidence: Evidence, weights: Mapping[str, Weights]) -> Changes:
        """Begins a round and forgets what was folded before. `weights` are those of the slots that `reads` named."""
        return {}

    @abc.abstractmethod
    def start(self, group: Iterable[int], holdings: Holdings) -> Starts:
        """The models, with their weights, whose mean a group starts from."""

    @abc.abstractmethod
    def fold(self, round_number: int, group: GroupModel) -> Changes:
        """Takes in the model that a group trained, and returns the slots that change at once.

        A merge that needs the models of all groups adds this one to a running sum and returns no change; `finish`
        then returns the changes.
        """

    def finish(self, round_number: int) -> Changes:
        """The changes of slots when all groups of a round were folded; for example, the mean of what they trained.

        It is called once in a round, after at least one `fold`.
        """
        return {}

    def lose(self, clients: Iterable[int], slots: Mapping[str, Held]) -> Mapping[int, str]:
        """Notes that the models which the nodes of these clients held no longer exist.

        Returns the clients that thereby have no model of their own any more, each with the slot to be forgotten.
        """
        return {}

    @abc.abstractmethod
    def of(self, client: int, slots: Mapping[str, Held]) -> Held:
        """The model that a client would use now."""

    def welcome(self, clients: Iterable[int]) -> tuple[str, ...]:
        """The slots that are given the model which these newcomers start from; none if all share one model."""
        return ()

    def untrained(self, client: int, slots: Mapping[str, Held]) -> str:
        """The reason why nobody trained the model that a client would use; empty if somebody did."""
        return ""

    def clients(self, holdings: Holdings) -> Iterable[int]:
        """The clients that have a model, present or not, in ascending order."""
        return holdings.samples

    def state(self) -> State:
        """What the merge must remember beside the models of slots: its `remembered` fields. It is saved after a round.

        Tensors are written and restored bit for bit, in their own dtype: a merge that sums in float64 keeps float64.
        """
        return saved_of(self), {}

    def restore(self, saved: Mapping[str, Any], tensors: Mapping[str, NDArray[np.generic]]) -> None:
        """Puts a new merge where `state` was taken. Keys of the JSON are text.

        Raises KeyError, TypeError or ValueError if something is missing or damaged.
        """
        restore_of(self, saved)

    def model_id(self, round_number: int, name: object) -> str:
        """The id of a model that is made in a round; `name` tells it from the others of the round."""
        return f"{self.settings.run_id}/{round_number}/{name}"

    def initial_id(self, slot: str) -> str:
        """The id of the model that a slot has before anybody trained it."""
        return f"{self.settings.run_id}/{slot}"
