"""Receipts: what a node signs about an order that made a model.

A receipt is the signature of a canonical text. The text names the order and the node, and the digests of what the node
began with and of what it made. So nobody else can make a receipt of that node, and a receipt fits no other order.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from fedgsp.messages import Discriminated, OrderKey, Trained

#: The first word of every text, so that it cannot be taken for another text that was signed with the same key.
PURPOSE = "fedgsp receipt 1"

#: Reports about a model that an order made.
Made = Trained | Discriminated


@dataclass(frozen=True, slots=True)
class Statement:
    """What a node states about an order that made a model. Digests are in hex digits; empty: there is none."""

    run: str
    round: int
    task: str
    group: int
    position: int
    attempt: int
    serial: int
    client: int
    node: str
    #: The model that the client began with, and the digest of what came to the node.
    start: str
    start_digest: str
    #: The result.
    model: str
    digest: str
    #: Digest of the revealed update.
    update_digest: str
    #: Samples that stand behind the result.
    samples: int

    @property
    def text(self) -> bytes:
        """The canonical text: JSON of the purpose and the values. No two statements have the same text."""
        return json.dumps([PURPOSE, *dataclasses.astuple(self)], separators=(",", ":")).encode()

    @classmethod
    def of(cls, key: OrderKey, client: int, node: str, made: Made, update_digest: bytes | None = None) -> Self:
        """The statement of a report. `update_digest`: that of the revealed update, if the report lacks the update."""
        update = made.update if isinstance(made, Trained) else None
        if update_digest is None:
            update_digest = update.digest if update is not None else b""
        return cls(
            key.run,
            key.round,
            key.task,
            key.group,
            key.position,
            key.attempt,
            key.serial,
            client,
            node,
            made.start.id if made.start is not None else "",
            made.start.digest.hex() if made.start is not None else "",
            made.ref.id if made.ref is not None else "",
            made.ref.digest.hex() if made.ref is not None else "",
            update_digest.hex(),
            made.samples,
        )

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """The statement with these fields, as `dataclasses.asdict` gives them; raises ValueError for others."""
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}
        if fields.keys() != kinds.keys() or any(type(fields[name]) is not kind for name, kind in kinds.items()):
            raise ValueError("it has not the fields of a statement")
        return cls(**fields)
