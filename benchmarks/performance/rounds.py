"""Measures whole rounds without real training: top server, group managers and 4 node processes on this machine.

Seconds come from the history, without the first round and the last round, which is the only one with an evaluation.
Checkpoints are written between rounds and are not included. Memory is the peak of all processes together (PSS), in a
separate run. The latency of a hop is the time between its event and the previous event of the same chain. A chain has
4 clients on 4 nodes, so every hop is between processes. The latency includes order, fetch, report and the next order,
but not the beginning and the end of the round.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime

from benchmarks.performance.rows import Row, main
from benchmarks.performance.runs import FEDAVG, MIB, ONE_GROUP, Played, idle_task, play
from benchmarks.performance.sizes import LEAF_CNN, SMALL

NODES = 4
CLIENTS = 368
#: A training of LEAF's CNN takes longer. Chains then wait for their nodes, and not for copies of models.
LASTING_S = 0.15
TIMEOUT_S = 300.0
LARGE_TIMEOUT_S = 600.0


def chains(played: Played) -> Iterator[float]:
    """Milliseconds per hop, as the mean over each chain after the first round."""
    hops = [event for event in played.events if event["event"] == "hop_finished" and event["round"] > 1]
    for _, chain in itertools.groupby(hops, key=lambda event: (event["round"], event["group"])):
        times = [datetime.fromisoformat(event["time"]) for event in chain]
        yield 1000 * (times[-1] - times[0]).total_seconds() / (len(times) - 1)


def few_clients(repeats: int) -> list[Row]:
    flags = [*FEDAVG, *idle_task(NODES, LEAF_CNN)]
    timed = play(flags, repeats + 2, TIMEOUT_S)
    watched = play(flags, 4, TIMEOUT_S, watch=True)
    relay = play([*ONE_GROUP, *idle_task(NODES, LEAF_CNN)], repeats + 2, TIMEOUT_S)
    small = play([*ONE_GROUP, *idle_task(NODES, SMALL)], 4 * repeats + 2, TIMEOUT_S)
    return [
        Row("FedAvg round, 4 clients, 26 MB", "s", timed.steady, 0.25, case="fedavg-round"),
        Row("peak memory of the round, all processes", "MiB", (watched.peak_pss / MIB,), 1126, case="fedavg-round"),
        Row(
            "hop of a relay round, 4 clients, 26 MB",
            "s",
            tuple(seconds / NODES for seconds in relay.steady),
            0.05,
            note="a round's time / 4",
            case="relay-hop",
        ),
        Row("latency of a hop, 0.4 MB", "ms", tuple(chains(small)), 10, case="control-hop"),
    ]


def many_clients(repeats: int) -> list[Row]:
    rows = []
    kinds = {"FedAvg": (FEDAVG, "", "368-clients"), "FedGSP": (("--scheme", "fedgsp"), "for information", "")}
    for name, (scheme, note, case) in kinds.items():
        flags = [*scheme, *idle_task(CLIENTS, LEAF_CNN)]
        timed = play(flags, min(repeats, 2) + 2, LARGE_TIMEOUT_S)
        watched = play(flags, 3, LARGE_TIMEOUT_S, watch=True)
        what = f"{name} round, {CLIENTS} clients on {NODES} nodes, 26 MB"
        groups = ", ".join(str(event["groups"]) for event in timed.events if event["event"] == "round_started")
        note = f"{note}; {groups} groups in its rounds" if note else ""
        rows += [
            Row(what, "s", timed.steady, 8, note=note, case=case),
            Row(
                f"peak memory of the round, all processes ({name})",
                "MiB",
                (watched.peak_pss / MIB,),
                2560,
                note=note,
                case=case,
            ),
        ]
    lasting = [*("--scheme", "fedgsp"), *idle_task(CLIENTS, LEAF_CNN, LASTING_S)]
    watched = play(lasting, 4, LARGE_TIMEOUT_S, watch=True)
    what = f"peak memory of the round, all processes (FedGSP, trainings of {LASTING_S} s)"
    rows.append(Row(what, "MiB", (watched.peak_pss / MIB,), 2560))
    return rows


def measure(repeats: int) -> list[Row]:
    return few_clients(repeats) + many_clients(repeats)


if __name__ == "__main__":
    main(measure, __doc__ or "")
