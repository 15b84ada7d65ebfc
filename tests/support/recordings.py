"""Recordings of long runs, written event by event as a top server writes them; no model was trained for them."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedgsp.settings.files import dump
from fedgsp.settings.run import RunConfig
from fedgsp.times import stamp
from top_server.record.events.base import Event
from top_server.record.events.processes import NodeJoined
from top_server.record.events.rounds import ClientSkipped, GroupFinished, HopFinished, Rerouted, RoundFinished
from top_server.record.events.rounds import RoundStarted as Started
from top_server.record.events.run import RunFinished, RunStarted
from top_server.record.history import plain

#: When the recorded run began.
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class Recording:
    """The files of one run, written with a clock that the caller sets."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        directory.mkdir(parents=True)
        self.directory, self.now = directory, BEGAN
        (directory / "config.toml").write_text(dump(RunConfig(**settings)), encoding="utf-8")
        self._events = (directory / "events.jsonl").open("w", encoding="utf-8")
        self._history = (directory / "history.jsonl").open("w", encoding="utf-8")

    def add(self, event: Event) -> None:
        """Writes an event, and the row of the history if it ends a round."""
        line = plain({"time": stamp(self.now), "event": event.kind(), **event.fields})
        self._events.write(json.dumps(line) + "\n")
        if isinstance(event, RoundFinished):
            self._history.write(json.dumps(plain(event.fields)) + "\n")

    def close(self) -> None:
        """Ends the files."""
        self._events.close()
        self._history.close()


def long_run(directory: Path, rounds: int = 1000, clients: int = 368, nodes: int = 8, finished: bool = True) -> Path:
    """A run in which all clients train in every round, in groups of up to 16, with some skips and reroutes."""
    draw = random.Random(0)
    record = Recording(directory, rounds=rounds, scheme="hcct", task="femnist", seed=0)
    for number in range(nodes):
        own = range(number, clients, nodes)
        record.add(
            NodeJoined(
                node=f"site-{number}",
                clients=len(own),
                names={client: f"Writer {client}" for client in own},
                address=f"site-{number}.example.org:7001",
                task_digest="0123456789abcdef",
                differs_from=None,
                device="cpu",
                memory=0,
                torch="2.13.0",
            )
        )
    record.add(
        RunStarted(
            run="recorded", directory="", round=0, clients=clients, nodes=nodes, rounds=rounds, scheme="hcct", head=[],
            constants={},
        )
    )  # fmt: skip
    for number in range(1, rounds + 1):
        _play(record, number, clients, nodes, draw)
    if finished:
        record.add(RunFinished(rounds=rounds, accuracy=0.9, seconds=float(rounds)))
    record.close()
    return directory


def _play(record: Recording, number: int, clients: int, nodes: int, draw: random.Random) -> None:
    order = draw.sample(range(clients), clients)
    teams = [order[begin : begin + 16] for begin in range(0, clients, 16)]
    record.add(
        Started(
            round=number, groups=len(teams), sampled_groups=len(teams), clients=clients, teams=teams,
            reason="clients with similar updates",
        )
    )  # fmt: skip
    skipped = 0
    for group, team in enumerate(teams):
        for position, client in enumerate(team):
            record.now += timedelta(milliseconds=3)
            if draw.random() < 0.002:
                skipped += 1
                record.add(
                    ClientSkipped(
                        round=number, group=group, program="relay", client=client, code="NODE_LOST",
                        reason=f"node site-{client % nodes} gave no sign of life for 30 s",
                    )
                )  # fmt: skip
                record.add(
                    Rerouted(round=number, group=group, client=client, reason="the client before it was skipped")
                )
                continue
            record.add(
                HopFinished(
                    round=number, group=group, program="relay", position=position, members=len(team), client=client,
                    loss=2.0 / number, seconds=0.25, turn=0.3, samples=200 + client, update_length=0.0, bytes=40104,
                    travelled=20104, coding="coded", model=f"recorded/{number}/{group}/relay/{position}.0",
                    node=f"site-{client % nodes}", via="node" if position else "top_server",
                )
            )  # fmt: skip
        record.add(GroupFinished(round=number, group=group))
    mean = 0.9 - 0.8 / number
    record.add(
        RoundFinished(
            round=number, groups=len(teams), sampled_groups=len(teams), clients_trained=clients - skipped,
            clients_skipped=skipped, accuracy=mean, loss=2.0 / number, clients_evaluated=clients, seconds=1.1,
            bytes_direct=40104 * clients, bytes_relayed=40104 * len(teams), bytes_travelled=20104 * clients,
            cpd_median=0.1, t_comp_s=1.0, t_comm_s=0.2, d_comm_bytes=40104 * clients,
            accuracy_per_client={client: min(1.0, mean + 0.05 * draw.random()) for client in range(clients)},
            partition=teams, metrics={}, metrics_per_client={},
        )
    )  # fmt: skip
