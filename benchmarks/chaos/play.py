"""Plays a plan, and judges the run."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.chaos import leftovers, oracle, times
from benchmarks.chaos.faults import Strike, strike
from benchmarks.chaos.kept import trainings
from benchmarks.chaos.plan import KEPT, Plan
from benchmarks.chaos.world import TOP_SERVER, World, world
from fedgsp.errors import DataError
from fedgsp.processes.children import tail
from fedgsp_node.kept.personal_state import PERSONAL_MODEL, PersonalState
from fedgsp_node.receipts import trained_models
from top_server.record.history import read_lines
from top_server.record.model_files import load

#: A fault that lasts as long must be noticed within this time.
DETECTION_S = 5.0

#: One oracle at a time, because it seeds the torch generator of this process.
_ORACLE = asyncio.Lock()


@dataclass(frozen=True, slots=True)
class Hit:
    """The effect of one fault, in seconds; None if nothing in the records shows it."""

    kind: str
    victim: str
    names: tuple[str, ...]
    at: float
    lasting: float
    detected: float | None
    recovered: float | None
    #: How long the fault could be noticed.
    exposed: float

    @property
    def late(self) -> bool:
        """Whether the fault was noticed too late."""
        return (self.exposed if self.detected is None else self.detected) > DETECTION_S


@dataclass(slots=True)
class Record:
    """The result of one run. The run is good if `wrong` is empty."""

    plan: Plan
    seconds: float = 0.0
    hits: list[Hit] = field(default_factory=list)
    skipped: int = 0
    wrong: list[str] = field(default_factory=list)


async def play(plan: Plan, folder: Path, tag: str = "") -> Record:
    """Plays a plan in an empty folder, and judges the files and processes that remain."""
    begin = time.time()
    record = Record(plan)
    strikes: list[Strike] = []
    async with world(plan, folder, tag) as this:
        striking = [asyncio.create_task(strike(this, fault, strikes), name=str(fault)) for fault in plan.faults]
        try:
            async with asyncio.timeout(plan.deadline_s):
                code = await _over(this, striking)
            if code:
                record.wrong.append(f"the top server ended with {code}: {tail(this.log('top server'), 2)}")
        except TimeoutError:
            record.wrong.append(f"not finished in {plan.deadline_s:.0f} s; last events: {this.events.look()[-3:]}")
        finally:
            for task in striking:
                task.cancel()
            ended = await asyncio.gather(*striking, return_exceptions=True)
        record.wrong += [f"{error!r}" for error in ended if isinstance(error, Exception)]
        record.seconds = round(time.time() - begin, 2)
        if not record.wrong:
            cut_off = {name for done in strikes for name in done.victims}
            await this.leave(this.nodes if TOP_SERVER in cut_off else cut_off)
            record.wrong += await asyncio.to_thread(leftovers.find, folder, this.run_dir, this.mark)
        record.wrong += this.wrong
        _measure(record, this, strikes)
    async with _ORACLE:
        try:
            record.wrong += await asyncio.to_thread(_judge, record, this, strikes)
        except Exception:  # a mistake of the judge must not end a campaign of hours
            record.wrong.append(f"it cannot be judged: {' '.join(traceback.format_exc(limit=-1).split())}")
    return record


async def _over(this: World, striking: list[asyncio.Task[None]]) -> int:
    """Waits for the top server's exit code; raises the error of a strike, if one fails."""
    waiting: set[asyncio.Future[Any]] = {this.over, *striking}
    while not this.over.done():
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    return this.over.result()


def _measure(record: Record, this: World, strikes: list[Strike]) -> None:
    events = this.events.look()
    looking = times.lost_top_server(path for name in this.nodes if (path := this.log(name)).exists())
    for done in strikes:
        until = times.next_fault(done, strikes)
        unwatched = times.unwatched(done, strikes, events)
        detected = times.detection(this.plan, done, events, [*looking, *this.orphans_gone], until, unwatched)
        recovered = times.recovery(this.plan, done, events, detected)
        lasting = (done.undone or time.time()) - done.at
        exposed = times.exposed(done, events, until, unwatched)
        record.hits.append(
            Hit(
                done.fault.kind,
                done.fault.victim,
                done.victims,
                done.at,
                *map(_rounded, (lasting, detected, recovered, exposed)),
            )
        )


def _judge(record: Record, this: World, strikes: list[Strike]) -> list[str]:
    """Adds what is wrong with a finished run to its record."""
    if record.wrong:
        return []
    plan, events = this.plan, this.events.look()
    played = [row["round"] for row in read_lines(this.run_dir / "history.jsonl")]
    if played != list(range(1, plan.rounds + 1)):
        return [f"the history has rounds {played}"]
    told = oracle.rounds_told(events)
    wrong = oracle.untold(told) + oracle.unnamed(told, events) + oracle.misplaced(plan, events)
    struck = {client for done in strikes for name in done.nodes for client in plan.hosted[int(name[1:])]}
    reachable = not any(done.fault.kind == "cut" and done.fault.victim == "top server" for done in strikes)
    for event in this.events.of_kind("client_skipped"):
        if event.get("program") in oracle.TRAINING:
            record.skipped += 1
            if event["client"] not in struck and reachable:
                what = f"round {event['round']}: client {event['client']}"
                wrong.append(f"{what} was skipped, although its node had no fault: {event['reason']}")
    for number, group in ((number, group) for number, this_round in told.items() for group in this_round.failed):
        if left := [client for client in told[number].teams[group] if (group, client) not in told[number].skipped]:
            wrong.append(f"round {number}: group {group} failed, although clients {left} could have trained")
    trained = trainings(map(this.state_dir, this.nodes)) if plan.optimizer == KEPT else ()
    expected = oracle.expected(plan, told, trained)
    found = load(this.run_dir / "models" / "final.safetensors")[0]
    wrong += [*expected.wrong, *_differing("the model", found, expected.model)]
    run_id = next(this.events.of_kind("run_started"))["run"]
    for client, model in expected.personal.items():
        (name,) = (name for name, clients in zip(this.nodes, plan.hosted, strict=True) if client in clients)
        try:
            kept = _kept(this.state_dir(name), run_id, client)
        except DataError as error:  # the file is damaged
            wrong.append(str(error))
            continue
        wrong += _differing(f"client {client}'s own model", kept, model)
    return wrong


def _kept(directory: Path, run_id: str, client: int) -> Mapping[str, Any]:
    """The tensors of the model that a client keeps on its node's disk; none if there is no model."""
    state = PersonalState(directory)
    state.open(run_id)
    state.settle_in_memory(client, partial(trained_models, directory))
    kept = state.get(client, PERSONAL_MODEL)
    return kept[1] if kept is not None else {}


def _differing(what: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    if found.keys() != expected.keys():
        return [f"{what} has tensors {sorted(found)}"]
    differing = [name for name, array in expected.items() if found[name].tobytes() != array.tobytes()]
    return [f"{what} differs from the oracle's in {', '.join(differing)}"] if differing else []


def _rounded(seconds: float | None) -> Any:
    return None if seconds is None else round(seconds, 3)
