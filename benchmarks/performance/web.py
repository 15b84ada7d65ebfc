"""Measures what the web page costs: processor seconds of the top server with and without it, in pairs.

    python -m benchmarks.performance.web [--repeats 5] [--clients 40] [--rounds 40]

A run of clients whose training costs almost nothing is played without a page, with a page that nobody opens, and with
a page that 100 streams of events follow, in turn. The time of the page's own process is a row of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.performance.rows import Row, main
from benchmarks.performance.runs import FEDAVG, INTERVAL_S, Run, RunFailedError, idle_task, started

PARAMETERS, NODES, STREAMS = 10_000, 2, 100
TIMEOUT_S = 600.0
#: Ratios that must not be exceeded: those of the processor time of the top server, and of a round.
WITH_PAGE, WITH_STREAMS, OF_ROUNDS = 1.03, 1.10, 1.10
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)(/\S+/)")


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor seconds of the top server and of the page, and the median seconds of a round."""

    top_server: float
    page: float
    round: float
    events: int


def play(clients: int, rounds: int, page: bool, streams: int = 0) -> Cost:
    flags = [*FEDAVG, *idle_task(clients, PARAMETERS), "--rounds", str(rounds), "--local-nodes", str(NODES)]
    flags += ["--sampling-rate", "1", *(["--web", "127.0.0.1:0"] if page else [])]
    spent: dict[int, float] = {}
    shown = 0
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(started(flags))
        received: list[int] = []
        while run.process.poll() is None:
            if time.monotonic() > run.begin + TIMEOUT_S:
                raise RunFailedError(f"the run did not finish; {run.last_words()}")
            if page and not shown and (found := _ADDRESS.search(_output(run))):
                shown = next(one.pid for one in run.process.children() if "web" in one.cmdline())
                if streams:
                    stack.enter_context(following(int(found[1]), found[2], streams, received))
            for pid in filter(None, (run.process.pid, shown)):
                with contextlib.suppress(psutil.Error):
                    times = psutil.Process(pid).cpu_times()
                    spent[pid] = times.user + times.system
            time.sleep(INTERVAL_S)
        if run.process.returncode:
            raise RunFailedError(f"exit code {run.process.returncode}; {run.last_words()}")
        took = sorted(event["seconds"] for event in run.events() if event["event"] == "round_finished")
        events = len(run.events())
    if streams and min(received) < events:
        raise RunFailedError(f"a stream got {min(received)} of {events} events")
    return Cost(spent[run.process.pid], spent.get(shown, 0.0), took[len(took) // 2], events)


def _output(run: Run) -> str:
    return Path(run.directory.parent / "output").read_text(errors="replace")


@contextlib.contextmanager
def following(port: int, path: str, streams: int, received: list[int]) -> Iterator[None]:
    """Follows a run with so many streams until they end, and appends how many events each of them got."""

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path}events?run=run&from=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        got = 0
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                got += data.count(b'"event": "')
        writer.close()
        received.append(got)

    async def follow() -> None:
        await asyncio.gather(*(one() for _ in range(streams)))

    thread = threading.Thread(target=lambda: asyncio.run(follow()), daemon=True)
    thread.start()
    yield
    thread.join(TIMEOUT_S)


def measure(repeats: int, clients: int, rounds: int) -> list[Row]:
    without, page, streams = [], [], []
    for _ in range(repeats):
        without.append(play(clients, rounds, page=False))
        page.append(play(clients, rounds, page=True))
        streams.append(play(clients, rounds, page=True, streams=STREAMS))

    def of(costs: list[Cost], name: str) -> tuple[float, ...]:
        return tuple(getattr(one, name) for one in costs)

    rows = []
    for what, costs, limit in (("a page", page, WITH_PAGE), (f"{STREAMS} streams", streams, WITH_STREAMS)):
        note = f"{clients} clients, {rounds} rounds, {without[0].events:,} events"
        plain = of(without, "top_server")
        rows.append(
            Row(f"top server with {what}, processor", "s", of(costs, "top_server"), limit, "without", plain, note=note)
        )
        rows.append(Row(f"round with {what}", "s", of(costs, "round"), OF_ROUNDS, "without", of(without, "round")))
        rows.append(Row(f"process of the page with {what}, processor", "s", of(costs, "page"), 60.0))
    return rows


if __name__ == "__main__":
    main(
        measure,
        __doc__ or "",
        sizes={"clients": (40, "number of clients"), "rounds": (40, "number of rounds of each run")},
    )
