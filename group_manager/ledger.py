"""The models of one group: who has the original of each, and what this manager has of it.

A record has two named states. `Origin` says who has the original:

    UNKNOWN --promise--> AT_MAKER --release, close: the maker is told to forget it--> SETTLED
       |                  ^     |                                                        ^
       |                  |     +--release(stays): the maker keeps it for its client-----+
       |             forget_copy: an upload is not expected any more                     |
       |                  |                                                              |
       +----promise---> BRINGING --release: it came, and the maker forgot it by itself---+
          (brings)                 close: it may not have come, so the maker is told

    PARTS, TOP_SERVER, AT_NODE: given by the request. These models are older than the group and outlive it at their
    holders, who are never told to forget them; only the copies at this manager are forgotten.

`Copy` says what this manager has; the table `TO_COPY` allows these changes and no others:

    NONE ----a task fetches it---> COMING ---the task ends---> HERE ---reserve---> RESERVED: only the top server
      |                                                        ^  |                   forgets it
      +----this manager makes it-------------------------------+  +---release, forget_copy, close: the store
      |                                                               forgets it---> NONE
      +----reserve, if it came unasked (BRINGING)---> RESERVED

    A HERE or RESERVED model that the store has forgotten may be fetched again. A model that is released while it is
    COMING is forgotten by close. The copy of a BRINGING model comes without a task, and counts as NONE.

Nodes that keep a start for several of their clients are told to forget it by release and by close.

The ledger does not know whether a node is still there (`Members` does), nor which weights are held at the moment (the
store does). A record without anything left to do is removed, so that a long relay does not fill the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from fedgsp.messages import Failure, Member, RunGroupRequest, Source

if TYPE_CHECKING:
    from asyncio import Task

    from group_manager.sessions import PendingOrder


class Origin(Enum):
    """Who has the original of a model."""

    UNKNOWN = auto()  # nobody that this group knows, or this manager, which made it
    PARTS = auto()  # it is the mean of the request's parts, which this manager makes before members are ordered
    TOP_SERVER = auto()  # the top server; the model is older than the group
    AT_NODE = auto()  # a node; the model is older than the group
    AT_MAKER = auto()  # the node that was ordered to make it, which must be told to forget it
    BRINGING = auto()  # the node that was ordered to make it, which uploads it here and forgets it by itself
    SETTLED = auto()  # nobody, or a node that keeps it for its client; there is nothing to tell any more


class Copy(Enum):
    """What this manager has of a model."""

    NONE = auto()
    COMING = auto()  # a task fetches it
    HERE = auto()  # it was made here or fetched, or could not be fetched: the store remembers why
    RESERVED = auto()  # it waits here for the top server


#: Copy -> the copies from which a model may come to it.
TO_COPY = {
    Copy.NONE: (Copy.NONE, Copy.HERE),
    Copy.COMING: (Copy.NONE, Copy.HERE, Copy.RESERVED),
    Copy.HERE: (Copy.NONE, Copy.HERE, Copy.COMING),
    Copy.RESERVED: (Copy.NONE, Copy.HERE, Copy.RESERVED),
}


class LedgerError(RuntimeError):
    """A change that the model's state does not allow: a mistake in a program."""


@dataclass(slots=True, eq=False)
class Record:
    """One model.

    Invariants: `maker` is set exactly while `origin` is AT_MAKER or BRINGING, `fetch` exactly while `copy` is COMING.
    """

    origin: Origin = Origin.UNKNOWN
    node: str = ""  # the holder, if `origin` is AT_NODE
    digest: bytes = b""  # if it is known from the request
    wrong: Failure | None = None  # it was not what its maker reported, or could not be made: nobody is asked again
    maker: PendingOrder | None = None  # the order that makes it, or that found it again
    copy: Copy = Copy.NONE
    fetch: Task[Any] | None = None
    #: The reader, and the node from which it should get the model; None if it should get it from this manager.
    direct: tuple[Member, Source] | None = None
    kept_by: tuple[str, ...] = ()  # nodes that keep it, because several of their clients start from it


class Ledger:
    """The records of one group's models, by model id.

    Its methods neither wait nor send. Where they return (node, model id) pairs, the caller has to tell these nodes to
    forget these models.
    """

    def __init__(self, request: RunGroupRequest) -> None:
        parts = (*request.parts, *(member.start for member in request.members if member.start is not None))
        self._records = {
            part.ref.id: Record(Origin.AT_NODE if part.node else Origin.TOP_SERVER, part.node, part.ref.digest)
            for part in parts
            if part.ref is not None
        }
        for hop in request.finished:
            if hop.model is not None:
                self._records[hop.model.id] = Record(digest=hop.model.digest)
        if request.start is not None:
            self._records[request.start.id] = Record(
                Origin.PARTS if request.parts else Origin.TOP_SERVER, digest=request.start.digest
            )

    @property
    def reserved(self) -> set[str]:
        """Ids of the models that are RESERVED, whether the top server has already forgotten them or not."""
        return {model_id for model_id, record in self._records.items() if record.copy is Copy.RESERVED}

    def look(self, model_id: str) -> Record:
        """The record of a model, only to be read; an empty record for an unknown model."""
        return self._records.get(model_id) or Record()

    def knows(self, model_id: str) -> bool:
        """Whether a model has a record."""
        return model_id in self._records

    def provides(self, model_id: str) -> bool:
        """Whether this manager knows from where to fetch a model."""
        return self.look(model_id).origin not in (Origin.UNKNOWN, Origin.BRINGING, Origin.SETTLED)

    def expects(self, model_id: str) -> bool:
        """Whether an upload of a model is expected: a task fetches it, or its maker, still at work, brings it."""
        record = self.look(model_id)
        brings = record.origin is Origin.BRINGING and record.maker is not None and not record.maker.outcome.done()
        return brings or record.copy is Copy.COMING

    def promise(self, model_id: str, maker: PendingOrder, brings: bool = False) -> None:
        """A node was ordered to make a model, or found it again; this counts more than an older model of that id."""
        record = self._records.setdefault(model_id, Record())
        if record.maker is not None:
            raise LedgerError(f"model {model_id!r} is promised twice")
        record.origin, record.maker = Origin.BRINGING if brings else Origin.AT_MAKER, maker

    def keep(self, model_id: str, node: str) -> None:
        """A node will keep a start for its other clients."""
        record = self._records.setdefault(model_id, Record())
        record.kept_by = (*(other for other in record.kept_by if other != node), node)

    def expect_direct(self, model_id: str, reader: Member, holder: Source) -> None:
        """A reader should get a promised model from its holder, and comes to this manager only if it cannot."""
        if self.look(model_id).maker is None:
            raise LedgerError(f"nobody has promised model {model_id!r}")
        self._records[model_id].direct = reader, holder

    def detour(self, model_id: str) -> tuple[Member, Source] | None:
        """This manager serves a model: the (reader, holder) of `expect_direct`, at the first call; then None."""
        record = self.look(model_id)
        direct, record.direct = record.direct, None
        return direct

    def copy(self, model_id: str, copy: Copy, fetch: Task[Any] | None = None) -> None:
        """This manager now has this copy of a model; `fetch` is the task that fetches a COMING one."""
        record = self._records.setdefault(model_id, Record())
        if record.copy not in TO_COPY[copy]:
            raise LedgerError(f"model {model_id!r} is {record.copy.name}, and cannot become {copy.name}")
        record.copy, record.fetch = copy, fetch
        if copy is Copy.NONE and not record.kept_by and record.origin in (Origin.UNKNOWN, Origin.SETTLED):
            del self._records[model_id]

    def forget_copy(self, model_id: str) -> None:
        """The store forgets its copy, and no upload of the model is expected any more; close forgets a COMING one."""
        record = self.look(model_id)
        if record.origin is Origin.BRINGING:
            record.origin = Origin.AT_MAKER
        if record.copy is not Copy.COMING:
            self.copy(model_id, Copy.NONE)

    def reserve(self, model_id: str) -> list[tuple[str, str]]:
        """The copy of a model now waits for the top server; the maker may forget the original."""
        self.copy(model_id, Copy.RESERVED)
        return _settle(model_id, self.look(model_id))

    def release(self, model_ids: Iterable[str], stays: bool = False) -> list[tuple[str, str]]:
        """Nobody in this group needs these models any more; `stays`: their makers keep them for their clients."""
        tell = []
        for model_id in model_ids:
            tell += _settle(model_id, self.look(model_id), stays)
            self.forget_copy(model_id)
        return tell

    def close(self, result_id: str) -> tuple[list[tuple[str, str]], list[str], list[Task[Any]]]:
        """Ends the group and empties the ledger.

        Returns the nodes to tell, the ids of models that the store has to forget, and the tasks to cancel.
        The result and the RESERVED copies stay in the store.
        """
        records, self._records = self._records, {}
        tell = {(record.maker.node, model_id) for model_id, record in records.items() if record.maker is not None}
        tell |= {(node, model_id) for model_id, record in records.items() for node in record.kept_by}
        forget = [
            model_id
            for model_id, record in records.items()
            if record.copy in (Copy.COMING, Copy.HERE)
            or (record.copy is Copy.NONE and record.origin is Origin.BRINGING)
        ]
        fetches = [record.fetch for record in records.values() if record.fetch is not None]
        return sorted(tell), [model_id for model_id in forget if model_id != result_id], fetches


def _settle(model_id: str, record: Record, stays: bool = False) -> list[tuple[str, str]]:
    """Settles a model, and returns which nodes have to be told to forget it."""
    nodes = set(record.kept_by)
    if record.maker is not None:
        if stays:
            nodes.discard(record.maker.node)
        elif record.origin is Origin.AT_MAKER:
            nodes.add(record.maker.node)
        record.origin = Origin.SETTLED
    record.maker, record.direct, record.kept_by = None, None, ()
    return [(node, model_id) for node in sorted(nodes)]
