"""The state of a run as monitoring sees it, gathered from its events; no network here."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

import fedgsp
from top_server.record.scores import score_of
from top_server.tracking.points import finite

#: Events with which the run begins to wait, for `timeout` seconds at most, and those with which it goes on.
_WAITS = ("waiting_for_nodes", "waiting_for_clients", "round_waits")
_GOES_ON = ("run_started", "run_resumed", "round_waited", "round_started", "local_run_started")
_LAST = {
    "score": "score, last evaluation",
    "loss": "loss, last evaluation",
    "round_seconds": "time of the last round",
}
_WAYS = ("direct", "relayed", "travelled")


@dataclass(slots=True, eq=False)
class State(Collector):
    """The run according to its events so far, since this top server began.

    Silence is measured by `clock`, which goes on when the clock of the machine is set.
    """

    clock: Callable[[], float] = time.monotonic

    #: Where it is served; empty if it is not.
    address: str = ""
    run: str = ""
    scheme: str = ""
    round: int = 0
    rounds: int = 0
    #: Node -> number of clients that it hosts.
    nodes: dict[str, int] = field(default_factory=dict)
    #: The figures of `_LAST`, of the last round that has them.
    last: dict[str, float] = field(default_factory=dict)
    #: Metrics of the task in the last evaluated round.
    metrics: dict[str, float] = field(default_factory=dict)
    #: Kind of an event -> how often it happened.
    events: Counter[str] = field(default_factory=Counter)
    #: Code -> how often clients were skipped for it.
    skipped: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    #: Moment of the last event, in seconds since 1970.
    latest: float | None = None
    #: The same moment by `clock`.
    heard: float | None = None
    #: Until when, by `clock`, the run may wait for nodes; None if it does not wait.
    waits_until: float | None = None
    #: Why the run has ended, or is about to end, before its last round.
    failure: str = ""

    def note(self, event: Mapping[str, Any]) -> None:
        """Takes an event."""
        kind = event["event"]
        self.events[kind] += 1
        self.latest, self.heard = datetime.fromisoformat(event["time"]).timestamp(), self.clock()
        if kind in _WAITS:
            self.waits_until = self.heard + float(event["timeout"])
        elif kind in _GOES_ON:
            self.waits_until = None
        if (change := _CHANGES.get(kind)) is not None:
            change(self, event)

    def collect(self) -> Iterable[Metric]:
        """The figures as Prometheus reads them."""
        told = {"run": self.run, "scheme": self.scheme, "version": fedgsp.__version__}
        yield InfoMetricFamily("fedgsp_run", "the run", told)
        yield from (GaugeMetricFamily(f"fedgsp_{name}", text, value) for name, text, value in self._gauges())
        metrics = GaugeMetricFamily("fedgsp_task_metric", "metrics of the task, last evaluation", labels=["name"])
        yield _with(metrics, self.metrics)
        counted = CounterMetricFamily("fedgsp_events", "events by kind, see docs/events.md", labels=["event"])
        yield _with(counted, self.events)
        skipped = CounterMetricFamily("fedgsp_clients_skipped", "times that a client was skipped", labels=["code"])
        yield _with(skipped, self.skipped)
        moved = CounterMetricFamily("fedgsp_bytes", "bytes of weights, as in history.jsonl", labels=["way"])
        yield _with(moved, {way: self.bytes[way] for way in _WAYS})

    def _gauges(self) -> Iterable[tuple[str, str, float]]:
        yield "round", "the current round, or the last one; 0 before the first", self.round
        yield "rounds", "number of rounds of the run; 0 before it has begun", self.rounds
        yield "nodes", "nodes that are connected", len(self.nodes)
        yield "clients", "clients that these nodes host", sum(self.nodes.values())
        yield "failed", "1 if the run has failed or was stopped, else 0", bool(self.failure)
        for name, text in _LAST.items():
            if name in self.last:
                yield name, text, self.last[name]
        if self.latest is not None:
            yield "last_event_timestamp_seconds", "when the last event happened, in seconds since 1970", self.latest

    def _started(self, event: Mapping[str, Any]) -> None:
        self.run, self.scheme = str(event["run"]), str(event["scheme"])
        self.round, self.rounds = int(event["round"]), int(event["rounds"])

    def _round_started(self, event: Mapping[str, Any]) -> None:
        self.round = int(event["round"])

    def _joined(self, event: Mapping[str, Any]) -> None:
        self.nodes[str(event["node"])] = int(event["clients"])

    def _left(self, event: Mapping[str, Any]) -> None:
        self.nodes.pop(str(event["node"]), None)

    def _skipped(self, event: Mapping[str, Any]) -> None:
        self.skipped[str(event.get("code"))] += 1

    def _finished(self, event: Mapping[str, Any]) -> None:
        row = {"score": score_of(event), "loss": event.get("loss"), "round_seconds": event.get("seconds")}
        self.last |= finite(row)
        if event.get("metrics"):
            self.metrics = finite(event["metrics"])
        for way in _WAYS:
            self.bytes[way] += int(event.get(f"bytes_{way}") or 0)

    def _ended(self, event: Mapping[str, Any]) -> None:
        self.failure = str(event.get("reason") or "the top server was stopped")


_CHANGES: Mapping[str, Callable[[State, Mapping[str, Any]], None]] = {
    "run_started": State._started,
    "run_resumed": State._started,
    "round_started": State._round_started,
    "round_finished": State._finished,
    "node_joined": State._joined,
    "node_left": State._left,
    "client_skipped": State._skipped,
    "run_failed": State._ended,
    "run_stopped": State._ended,
}


def _with(family: Any, values: Mapping[str, float]) -> Metric:
    for label, value in sorted(values.items()):
        family.add_metric([label], value)
    found: Metric = family
    return found


def unhealthy(state: State, after_s: float) -> str:
    """Why the run makes no progress now; empty if it does.

    A run may wait for nodes until its own deadline. Otherwise there is an event at least every `after_s` seconds.
    """
    now = state.clock()
    if state.failure:
        return f"the run has failed: {state.failure}"
    if state.heard is None or (state.waits_until is not None and now <= state.waits_until + after_s):
        return ""
    silent = now - state.heard
    return f"no event for {silent:.0f} s, in round {state.round} of {state.rounds}" if silent > after_s else ""
