"""What a node keeps of the orders that it got and of what it answered, and its signatures of results.

With a state directory, a node writes a line to receipts.jsonl there for every order on a client, before it answers.
So a site can show later what it was asked, and what it signed. When the file is large, it is put aside as a part
(`fedgsp.security.chained_parts`): nothing is removed, and a run of any length has all its receipts.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedgsp.errors import DataError, RunError, not_written
from fedgsp.files import open_file, parse_json, whole_lines
from fedgsp.messages import (
    Attached,
    Describe,
    Discriminate,
    Evaluate,
    Failure,
    Initialise,
    Order,
    OrderKey,
    Recalled,
    Result,
    Train,
    Trained,
)
from fedgsp.security.chained import BrokenError, ChainedFile
from fedgsp.security.chained_parts import ChainedParts, parts_of
from fedgsp.security.receipts import Made, Statement
from fedgsp.security.signing import Signer
from fedgsp.times import stamp
from fedgsp.visible import visible

#: Orders on a client; all others only move or forget models.
_KEPT = (Train, Evaluate, Describe, Discriminate, Initialise)
#: With less room on the disk in bytes, or less than this share of it, there are no further lines: a top server could
#: fill the disk by its orders, and others need it too.
LEAST_FREE, LEAST_FREE_SHARE = 100 << 20, 0.05
#: Most bytes of the fields of a line, which usually have 800. Of longer fields, the line has so many characters.
MOST_BYTES, _KEPT_CHARACTERS = 4_000, 1_500


class Receipts:
    """Signs results, and keeps what was asked and answered."""

    def __init__(
        self, signer: Signer | None = None, log: ChainedFile | None = None, now: Callable[[], float] = time.time
    ) -> None:
        """Without a signer, as without TLS, nothing is signed. Without a log nothing is kept."""
        self._signer = signer
        self._log = log
        self._now = now

    def answer(self, attached: Attached, key: OrderKey, order: Order, result: Result | Recalled | None) -> bytes:
        """The receipt of a result, if it tells of a model that was made; else empty.

        Raises RunError if it cannot be kept: what is not kept is not answered.
        """
        receipt, made = b"", dict[str, Any]()
        if isinstance(result, Made) and result.ref is not None:
            statement = Statement.of(key, order.client, attached.node, result)
            receipt = self._signer.sign(statement.text) if self._signer is not None else b""
            made = {"statement": dataclasses.asdict(statement), "receipt": receipt.hex() or None}
        answered = type(result).__name__.lower()
        self._keep(attached, key, order, _leaves_something(order, result), answered=answered, **made)
        return receipt

    def failed(self, attached: Attached, key: OrderKey, order: Order, failure: Failure) -> None:
        """An order was not carried out."""
        with contextlib.suppress(RunError):  # nothing of the client leaves the node
            self._keep(attached, key, order, failed=failure.code.name, reason=visible(failure.detail))

    def _keep(self, attached: Attached, key: OrderKey, order: Order, lasting: bool = False, **answer: Any) -> None:
        if self._log is None or not isinstance(order.work, _KEPT):
            return
        _check_room(self._log.path)
        when = stamp(datetime.fromtimestamp(self._now(), UTC))
        told = {"time": when, "manager": visible(attached.manager), "order": dataclasses.asdict(key)}
        fields = _short(_shown({**told, "client": order.client, "asked": _asked(order.work), **answer}))
        self._log.append(fields, lasting)


def _leaves_something(order: Order, result: Result | Recalled | None) -> bool:
    """Whether an order was a training whose client goes on from what it has left, as soon as there is a receipt.

    What it has left survives a power cut, and so its receipt must, too.
    """
    retained = isinstance(order.work, Train) and order.work.retain
    return isinstance(result, Trained) and (result.keeps or retained)


def _check_room(path: Path) -> None:
    """Raises RunError, as for a full disk, if the disk of a file is nearly full."""
    try:
        disk = os.statvfs(path.parent)
        free, whole = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        if free < min(LEAST_FREE, LEAST_FREE_SHARE * whole):
            raise OSError(errno.ENOSPC, f"only {free / 1e6:.0f} MB are free on its disk")
    except OSError as error:
        raise not_written(path, error) from error


def _short(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a line. Of fields that are too long, the beginning of their JSON text and its SHA-256.

    What `trained_models` needs stays.
    """
    text = json.dumps(fields, allow_nan=False)
    if len(text) <= MOST_BYTES:
        return fields
    beginning = {"beginning": text[:_KEPT_CHARACTERS], "sha256": hashlib.sha256(text.encode()).hexdigest()}
    trained = fields.get("answered") == "trained"
    return {**beginning, "answered": "trained", "makes": fields["asked"]["makes"]} if trained else beginning


def _asked(work: Train | Evaluate | Describe | Discriminate | Initialise) -> dict[str, Any]:
    """The parts of an order that say what was asked of the client's data."""
    start, settings, reveal = (getattr(work, name, None) for name in ("start", "settings", "reveal"))
    asked: dict[str, Any] = {"work": type(work).__name__.lower(), "makes": getattr(work, "produces", "")}
    if start is not None:
        asked["start"] = start.model_id
    if settings is not None:
        asked["settings"] = dataclasses.asdict(settings)
    if reveal is not None:
        asked["reveal"] = reveal.view
    if outgoing := getattr(work, "outgoing", ()):
        asked["outgoing"] = [step.name for step in outgoing]
    if isinstance(work, Discriminate):
        asked["others"] = len(work.others)
    return asked


def _shown(value: Any) -> Any:
    """JSON has neither NaN nor infinity, and a malicious manager may order them, also deep in the settings."""
    if isinstance(value, dict):
        return {name: _shown(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def receipt_log(directory: Path | None) -> Iterator[ChainedFile | None]:
    """The log in a state directory, which is continued; None without a directory. Raises UserError."""
    if directory is None:
        yield None
        return
    path = directory / "receipts.jsonl"
    try:
        file = ChainedParts(path)
    except BrokenError as error:
        raise DataError(f"{path}: {error}", "move it away, and keep it: somebody may have changed it") from None
    with file:
        yield file


def trained_models(directory: Path | None) -> frozenset[str]:
    """The ids of the models of which the receipts in a state directory say that a training has made them.

    All parts are read: the other clients may have trained often since the disk failed for one. Raises DataError if
    one cannot be read.
    """
    if directory is None:
        return frozenset()
    path, found = directory / "receipts.jsonl", set[str]()
    for file in (*(part for _, part in parts_of(path)), path):
        try:
            with open_file(file) as lines:
                found.update(filter(None, map(_trained_model, whole_lines(lines))))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}", "correct its permissions") from None
    return frozenset(found)


def _trained_model(line: bytes) -> str | None:
    """The id of the model that a training has made according to a line; None for other lines."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        row = parse_json(line)
        if row["answered"] == "trained":
            return str(row.get("makes") or row["asked"]["makes"])
    return None
