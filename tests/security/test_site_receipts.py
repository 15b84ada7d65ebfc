"""What a node keeps of its orders: every one of them, in a file that a top server cannot make large."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedgsp import wire
from fedgsp.messages import (
    Attached,
    Cancel,
    Describe,
    Described,
    Done,
    Evaluate,
    Failed,
    Failure,
    FailureCode,
    NodeReport,
    OptimizerSettings,
    Order,
    OrderKey,
    Start,
    Train,
    TrainingSettings,
    Work,
)
from fedgsp_node.connections.attachment import Attachment
from fedgsp_node.receipts import Receipts, receipt_log

KEY = OrderKey(1, "train", 0, 0, 0, "run", 5)
ATTACHED = Attached("run", "n1", "m0")
SETTINGS = TrainingSettings("sgd", 1, 8, 0.1, 0)
TRAIN = Train(Start("start", ()), "m", SETTINGS)
LONG = '"é' * 100_000

#: An order of a top server that wants to fill the disk.
ENDLESS: dict[str, Order] = {
    "options": Order(
        KEY, 0, dataclasses.replace(TRAIN, settings=dataclasses.replace(SETTINGS, options={"a": LONG, LONG: "a"}))
    ),
    "algorithm": Order(KEY, 0, dataclasses.replace(TRAIN, settings=dataclasses.replace(SETTINGS, algorithm=LONG))),
    "start": Order(KEY, 0, Evaluate(Start(LONG, ()))),
    "produces": Order(KEY, 0, dataclasses.replace(TRAIN, produces=LONG)),
    "key": Order(dataclasses.replace(KEY, task=LONG), 0, Describe()),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_no_order_makes_a_line_that_is_longer_than_a_page(what: str, tmp_path: Path) -> None:
    order = ENDLESS[what]
    assert order.key is not None
    with receipt_log(tmp_path) as log:
        receipts = Receipts(None, log)
        receipts.failed(ATTACHED, order.key, order, Failure(FailureCode.POLICY, LONG))
        receipts.answer(ATTACHED, order.key, order, Described((1, 2)))
    for line in (tmp_path / "receipts.jsonl").read_bytes().splitlines():
        assert len(line) < 4_000
        assert "time" in json.loads(line)["beginning"]  # the line says that there was an order, and which one


def not_finite(value: float) -> tuple[TrainingSettings, ...]:
    """Settings with the value in each place that takes a number which need not be whole."""
    return (
        dataclasses.replace(SETTINGS, learning_rate=value),
        dataclasses.replace(SETTINGS, optimizer=OptimizerSettings("sgd", clip_norm=value)),
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_an_order_with_a_number_that_is_none_has_a_line_and_an_answer(value: float, tmp_path: Path) -> None:
    asked = not_finite(value)
    with receipt_log(tmp_path) as log:
        life = Attachment(None, ATTACHED, Worker(), receipts=Receipts(None, log))  # type: ignore[arg-type]
        for position, settings in enumerate(asked):
            key = dataclasses.replace(KEY, position=position)
            life._take(Order(key, 0, Evaluate(Start("start", ()), settings=settings)))
            assert (await ended(life)).key == key
    lines = [json.loads(line) for line in (tmp_path / "receipts.jsonl").read_text().splitlines()]
    assert [str(value) in json.dumps(line["asked"]) for line in lines] == [True] * len(asked)


@pytest.mark.parametrize("run", ["run.0", "run.", "run.alone.alone", "run.alone2", "runs", "run.ALONE", ""])
async def test_no_other_run_begins_with_the_id_of_the_run(run: str) -> None:
    """Under a new id, a client would draw its noise again, and be asked as often as in a new round."""
    life = Attachment(None, ATTACHED, Worker())  # type: ignore[arg-type]
    life._take(Order(dataclasses.replace(KEY, run=run), 0, Describe()))
    failed = (await ended(life)).failure
    assert failed == Failure(FailureCode.BAD_ORDER, f"an order of run {run!r}, not of 'run'")


async def test_orders_of_the_local_run_are_those_of_the_run() -> None:
    life = Attachment(None, ATTACHED, Worker())  # type: ignore[arg-type]
    life._take(Order(dataclasses.replace(KEY, run="run.alone"), 0, Describe()))
    report = await life._reports.get()
    assert report is not None
    assert isinstance(wire.decode(NodeReport, report).kind, Done)


class Worker:
    """Carries out no order: the client's code has a bug, or an order waits until it is called off."""

    mark = 0

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def carry_out(self, order: Order, upload: object, trained: object, start_came: object) -> Any:
        if isinstance(order.work, Describe):
            return Described((1, 2))
        if isinstance(order.work, Evaluate):
            raise ZeroDivisionError
        self.begun.set()
        await asyncio.Event().wait()


def orders() -> Iterator[Order]:
    works: tuple[Work, ...] = (TRAIN, TRAIN, Evaluate(Start("s", ())), Describe(), Describe())
    for position, work in enumerate(works):
        run = "other" if position == 4 else KEY.run
        yield Order(dataclasses.replace(KEY, position=position, run=run), 0, work)


async def ended(life: Attachment) -> Failed:
    report = await life._reports.get()
    assert report is not None
    kind = wire.decode(NodeReport, report).kind
    assert isinstance(kind, Failed)
    return kind


async def test_every_order_on_a_client_has_a_line_however_it_ends(tmp_path: Path) -> None:
    worker = Worker()
    first, early, bug, _, other = orders()
    with receipt_log(tmp_path) as log:
        life = Attachment(None, ATTACHED, worker, receipts=Receipts(None, log))  # type: ignore[arg-type]
        for order in (first, bug, other):
            life._take(order)
        await worker.begun.wait()
        for order in (early, dataclasses.replace(early, work=Cancel()), dataclasses.replace(first, work=Cancel())):
            life._take(order)
        reports = [await ended(life) for _ in range(4)]
    lines = [json.loads(line) for line in (tmp_path / "receipts.jsonl").read_text().splitlines()]
    assert {line["order"]["position"]: line["failed"] for line in lines} == {
        0: "CANCELLED",
        1: "CANCELLED",
        2: "UNSPECIFIED",
        4: "BAD_ORDER",
    }
    assert len(lines) == len(reports)


async def test_a_nearly_full_disk_fails_the_order_with_its_remedy_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimpleNamespace(f_bavail=4, f_frsize=1_000_000, f_blocks=100)
    monkeypatch.setattr("fedgsp_node.receipts.os.statvfs", lambda _: disk)
    *_, described, _ = orders()
    with receipt_log(tmp_path) as log:
        life = Attachment(None, ATTACHED, Worker(), receipts=Receipts(None, log))  # type: ignore[arg-type]
        life._take(described)
        failed = await ended(life)
    assert failed.failure is not None
    assert failed.failure.code is FailureCode.NO_ROOM
    assert failed.failure.detail.endswith("only 4 MB are free on its disk; make room on that disk")
    assert [record.exc_info for record in caplog.records] == [None]


async def test_a_full_disk_fails_the_order_by_its_code_and_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fedgsp.security.chained.write_all", full)
    *_, described, _ = orders()
    with receipt_log(tmp_path) as log:
        life = Attachment(None, ATTACHED, Worker(), receipts=Receipts(None, log))  # type: ignore[arg-type]
        life._take(described)
        failed = await ended(life)
    assert failed.failure == Failure(
        FailureCode.NO_ROOM,
        f"{tmp_path}/receipts.jsonl cannot be written: No space left on device; make room on that disk",
    )
