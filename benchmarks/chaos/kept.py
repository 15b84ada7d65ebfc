"""What clients keep of their optimisers, computed from the receipts in the state directories of the nodes.

A client that was skipped may have trained all the same, and then keeps a state that the events of the run do not show.
The receipts show every training that counts for its client: its round, its client, the model it began with, and the
digest of its result. A training without a receipt leaves nothing, also if its node was killed as it wrote the state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3

from fedgsp.security.chained import TornError
from fedgsp.security.chained_parts import links_of_parts
from tests.support.keeping import Keeping
from tests.support.reference import State


@dataclass(frozen=True, slots=True)
class Training:
    """A training according to a receipt."""

    time: str
    round: int
    client: int
    #: Ids of the model that the client began with, and of its result.
    start: str
    made: str
    #: Digest of the result.
    digest: str


def trainings(directories: Iterable[Path]) -> list[Training]:
    """The trainings of all nodes, oldest first, from the receipts in their state directories.

    The last line of a node whose disk was full has no end; nothing was answered for it.
    """
    found = []
    for path in (directory / "receipts.jsonl" for directory in directories):
        for row in _lines(path) if path.exists() else ():
            if row.get("answered") == "trained" and row["asked"]["work"] == "train":
                said = row["statement"]
                ids = row["asked"]["start"], said["model"]
                found.append(Training(row["time"], said["round"], row["client"], *ids, said["digest"]))
    return sorted(found, key=lambda one: one.time)


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    with contextlib.suppress(TornError):
        for link in links_of_parts(path):
            yield link.fields


def states_after(
    reference: Keeping,
    model: State,
    number: int,
    trained: Sequence[Training],
    lost: Collection[int],
    travels: Collection[str],
) -> tuple[dict[int, Any], dict[int, Any], list[str]]:
    """The states with which the clients begin round `number` from `model`, those after it, and what is wrong.

    `lost` are the clients that began anew because their nodes no longer had the state; `travels` names the tensors
    that are sent. A client that trains twice in a round begins both times with the state before the round.
    """
    before = {client: state for client, state in reference.states.items() if client not in lost}
    known, after, wrong = dict[str, State](), dict(before), []
    for one in (one for one in trained if one.round == number):
        reference.states = dict(before)
        # What no client has made in this round is the model with which the round began.
        made = reference.train(known.get(one.start, model), one.client, number)
        after[one.client] = reference.states[one.client]
        if digest(made, travels) != one.digest:
            wrong.append(f"round {number}: client {one.client} has another result than the oracle")
        known[one.made] = made
    return before, after, wrong


def digest(state: State, travels: Collection[str]) -> str:
    """The digest under which FedGSP knows a model: BLAKE3 of the tensors that travel, each padded to 8 bytes."""
    hasher = blake3.blake3()
    for name, array in state.items():
        if name in travels:
            hasher.update(array.tobytes() + bytes(-array.nbytes % 8))
    return hasher.hexdigest()
