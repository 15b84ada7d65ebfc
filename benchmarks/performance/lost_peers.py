"""Measures how soon a lost peer is noticed while a large model is on its way, by `benchmarks.performance.lost_peers`.

A run has two nodes and one chain of two clients, with a model of 250 MB, which is not coded. Each node is in a network
namespace behind a link of 10 Mbit/s with a round trip of 100 ms. One node gives the first model to the top server;
later a node fetches the model of the other one. Until then the links are fast, because each transfer takes 200
seconds. Three seconds after its begin something is lost. The seconds end with the first event, or line of a log, that
tells of it. This needs Linux, root and /dev/net/tun.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGSTOP

from benchmarks.chaos import times
from benchmarks.chaos.events import epoch
from benchmarks.chaos.links import Links, why_not
from benchmarks.chaos.plan import Plan
from benchmarks.chaos.world import TOP_SERVER, World, world
from benchmarks.performance.rows import Row, main
from fedgsp.transfers.link_choice import RAW

PARAMETERS = 62_500_000
ROUND_TRIP_S, BYTES_PER_S = 0.1, 10e6 / 8
#: The transfer has been on its way for so many seconds when something is lost.
ON_ITS_WAY_S = 3.0
#: Seconds until a lost peer should be noticed, and until this measure gives up.
LIMIT_S, MOST_S = 5.0, 60.0
START_S = 120.0
PLAN = Plan(
    *(0, "fedgsp", "auto", 1.0, 1, ((0,), (1,)), ()),
    delay_s=ROUND_TRIP_S / 2,
    wire=RAW,
    beta=1,
    parameters=PARAMETERS,
)


#: What the log of a node says if a source did not give a model.
_NOT_HAD = "not had from node"
#: The node that gives the model on its way, and the other one.
Chain = Sequence[str]
#: Loses something.
Lose = Callable[[World, Chain], None]
#: When those who should notice it have noticed it, of all moments after `begin`; empty as long as they have not.
Noticed = Callable[[World, Chain, float], list[float]]


def _cut_off(place: int) -> Lose:
    def lose(this: World, chain: Chain) -> None:
        _links(this).cut |= _links(this).links_of(chain[place])

    return lose


def _cut_off_top_server(this: World, _: Chain) -> None:
    _links(this).cut |= _links(this).links_of(TOP_SERVER)


def _cut_between(this: World, chain: Chain) -> None:
    _links(this).cut.add(frozenset(chain))


def _freeze(place: int) -> Lose:
    def lose(this: World, chain: Chain) -> None:
        this.signal(this.processes[chain[place]].pid, SIGSTOP)

    return lose


def _left(*places: int) -> Noticed:
    """By the top server: that these nodes have left."""

    def noticed(this: World, chain: Chain, begin: float) -> list[float]:
        found = [_events(this, begin, "node_left", node=chain[place]) for place in places]
        return [max(min(times) for times in found)] if all(found) else []

    return noticed


def _look_for_top_server(this: World, chain: Chain, begin: float) -> list[float]:
    found = [[at for at in times.lost_top_server([this.log(node)]) if at >= begin] for node in chain]
    return [max(min(moments) for moments in found)] if all(found) else []


def _another_source(this: World, chain: Chain, begin: float) -> list[float]:
    """By the node that fetches: that it did not get the model from the other one. The run tells so when it has it."""
    lines = this.log(chain[1]).read_text(errors="replace").splitlines()
    return [at for line in lines if _NOT_HAD in line and (at := epoch(json.loads(line))) >= begin]


def _events(this: World, begin: float, *kinds: str, **fields: object) -> list[float]:
    return [at for event in this.events.of_kind(*kinds, **fields) if (at := epoch(event)) >= begin]


def _links(this: World) -> Links:
    assert this.links is not None
    return this.links


@dataclass(frozen=True)
class Case:
    """What is lost, and during which transfer: of the first model, or of a client's."""

    what: str
    #: How many clients have trained when the transfer begins.
    trained: int
    lose: Lose
    noticed: Noticed


CASES = (
    Case("the top server is cut off from all nodes, and notices it", 0, _cut_off_top_server, _left(0, 1)),
    Case("the top server is cut off from all nodes, which notice it", 0, _cut_off_top_server, _look_for_top_server),
    Case("the node that gives the first model is cut off", 0, _cut_off(0), _left(0)),
    Case("the node that holds a model is cut off", 1, _cut_off(0), _left(0)),
    Case("the node that holds a model is frozen", 1, _freeze(0), _left(0)),
    Case("the node that fetches a model is cut off", 1, _cut_off(1), _left(1)),
    Case("the link between the two nodes is cut", 1, _cut_between, _another_source),
)


async def _seconds(case: Case, folder: Path, tag: str) -> float:
    """Seconds until the loss was noticed; infinity if it was not."""
    async with world(PLAN, folder, tag) as this:
        thin = dict.fromkeys(this.nodes, BYTES_PER_S)
        if not case.trained:
            _links(this).rates = thin
        async with asyncio.timeout(START_S):
            await this.events.until(lambda events: any(events.of_kind("run_started")))
            await this.events.until(lambda events: len(list(events.of_kind("hop_finished"))) >= case.trained)
        _links(this).rates = thin
        await asyncio.sleep(ON_ITS_WAY_S)
        chain = sorted(this.nodes, key=_links(this).sent_until, reverse=True)
        begin = time.time()
        case.lose(this, chain)
        while time.time() < begin + MOST_S:
            this.events.look()
            if found := case.noticed(this, chain, begin):
                return min(found) - begin
            await asyncio.sleep(0.1)
    return float("inf")


def measure(repeats: int) -> list[Row]:
    """A row for each case."""
    if reason := why_not():
        sys.stderr.write(f"lost_peers: {reason}\n")
        return []
    rows = []
    for number, case in enumerate(CASES):
        found = []
        for again in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                found.append(asyncio.run(_seconds(case, Path(folder), f"l{number}{again}")))
        rows.append(Row(f"noticed with 250 MB on their way: {case.what}", "s", tuple(found), LIMIT_S))
    return rows


if __name__ == "__main__":
    main(measure, __doc__ or "", repeats=2)
