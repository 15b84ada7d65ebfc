"""The state of a run that the live view shows, gathered from its events; no drawing and no clock here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fedgsp.words import share
from top_server.view.lines import count, describe

LAST_EVENTS = 4
#: The time left is estimated from the mean duration of this many rounds: later rounds have more groups than the first.
RECENT_ROUNDS = 5
#: Events that the live view shows as numbers and not as lines.
_IN_NUMBERS = ("round_finished", "local_round_finished", "discriminators", "managers_starting", "manager_spawned")


@dataclass(slots=True)
class Group:
    """A group of the current round."""

    number: int
    members: int = 0
    hops: int = 0
    skipped: int = 0
    #: "training", "finished" or "failed".
    state: str = "training"


@dataclass(slots=True)
class Discriminators:
    """Progress of the networks that measure how far apart the clients' data are (scheme fedcollab)."""

    exchanges: int
    left: int
    networks: int


@dataclass(slots=True)
class ViewState:
    """The run according to its events so far; during a local run (`--local-run`), the state of that one."""

    #: "alone" for a local run.
    scheme: str = ""
    address: str = ""
    #: Node -> number of clients that it hosts.
    nodes: dict[str, int] = field(default_factory=dict)
    #: How many nodes and clients the run waits for, or has had at the same time.
    all_nodes: int = 0
    all_clients: int = 0
    #: Group managers that start together, and how many of them are ready.
    managers_starting: int = 0
    managers_ready: int = 0
    rounds: int = 0
    #: The current round, or the last one; 0 before the first.
    round: int = 0
    sampled_groups: int = 0
    groups: dict[int, Group] = field(default_factory=dict)
    #: None unless distances between clients are being measured.
    discriminators: Discriminators | None = None
    finished_rounds: int = 0
    accuracies: list[float] = field(default_factory=list)
    loss: float | None = None
    started: datetime | None = None
    finished: bool = False
    round_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS))
    last_events: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_EVENTS))

    def apply(self, event: Mapping[str, Any]) -> str | None:
        """Update the state by one event and return the event's line, or None; unknown events change nothing."""
        change = _CHANGES.get(event["event"])
        if change is not None:
            change(self, event)
        line = describe(event)
        if line is not None and event["event"] in ("node_joined", "node_left") and event.get("reason") != "dismissed":
            line += f" ({self.present})"
        if line is not None and event["event"] not in _IN_NUMBERS:
            self.last_events.append(line)
        return line

    @property
    def clients(self) -> int:
        """Number of clients that the present nodes host."""
        return sum(self.nodes.values())

    @property
    def present(self) -> str:
        """How many nodes and clients are there, such as "1 of 4 nodes, 6 of 24 clients"."""
        nodes = share(len(self.nodes), self.all_nodes, "node")
        return f"{nodes}, {share(self.clients, self.all_clients, 'client')}"

    @property
    def seconds_left(self) -> float | None:
        """An estimate from recent rounds, made at the end of the last one; None before the first round ended."""
        if not self.round_seconds or self.finished:
            return None
        return sum(self.round_seconds) / len(self.round_seconds) * max(self.rounds - self.finished_rounds, 0)


def _listening(state: ViewState, event: Mapping[str, Any]) -> None:
    state.address = str(event.get("address", ""))


def _waiting(state: ViewState, event: Mapping[str, Any]) -> None:
    state.all_nodes = max(state.all_nodes, count(event.get("nodes")))
    state.all_clients = max(state.all_clients, count(event.get("clients")))


def _node_joined(state: ViewState, event: Mapping[str, Any]) -> None:
    state.nodes[str(event.get("node"))] = count(event.get("clients"))
    state.all_nodes, state.all_clients = max(state.all_nodes, len(state.nodes)), max(state.all_clients, state.clients)


def _node_left(state: ViewState, event: Mapping[str, Any]) -> None:
    state.nodes.pop(str(event.get("node")), None)


def _run_started(state: ViewState, event: Mapping[str, Any]) -> None:
    state.scheme = str(event.get("scheme", ""))
    state.rounds = count(event.get("rounds"))
    state.started = datetime.fromisoformat(event["time"])
    # A local run may have left other values; a resumed run begins after the last round that was saved.
    state.round = state.finished_rounds = count(event.get("round"))
    state.accuracies.clear()
    state.round_seconds.clear()


def _managers(state: ViewState, event: Mapping[str, Any]) -> None:
    state.managers_starting, state.managers_ready = count(event.get("managers")), count(event.get("ready"))


def _local_run_started(state: ViewState, event: Mapping[str, Any]) -> None:
    _run_started(state, {**event, "scheme": "alone", "round": 0})
    state.round = 1


def _local_round_finished(state: ViewState, event: Mapping[str, Any]) -> None:
    _round_finished(state, event)
    state.round = min(state.round + 1, state.rounds)


def _discriminators(state: ViewState, event: Mapping[str, Any]) -> None:
    state.discriminators = Discriminators(*(count(event.get(name)) for name in ("exchanges", "left", "networks")))


def _distances_found(state: ViewState, _event: Mapping[str, Any]) -> None:
    state.discriminators = None


def _round_started(state: ViewState, event: Mapping[str, Any]) -> None:
    state.round = int(event.get("round") or 0)
    state.sampled_groups = count(event.get("sampled_groups"))
    teams = event.get("teams")
    state.groups = {i: Group(i, count(team)) for i, team in enumerate(teams)} if isinstance(teams, list) else {}


def _in_training(state: ViewState, event: Mapping[str, Any]) -> Group | None:
    """The group of an event; None for events of a survey, which asks clients something outside the training.

    Surveys come before and after the training of a round, and use group numbers too.
    """
    group = state.groups.get(event.get("group", -1))
    return group if group and group.state == "training" and event.get("round") == state.round else None


def _hop_finished(state: ViewState, event: Mapping[str, Any]) -> None:
    group = _in_training(state, event)
    if group is not None:
        group.members = count(event.get("members"))
        group.hops += 1


def _client_skipped(state: ViewState, event: Mapping[str, Any]) -> None:
    group = _in_training(state, event)
    if group is not None:
        group.skipped += 1


def _group_ended(state: ViewState, event: Mapping[str, Any]) -> None:
    if group := state.groups.get(event.get("group", -1)):
        group.state = str(event["event"]).removeprefix("group_")


def _round_finished(state: ViewState, event: Mapping[str, Any]) -> None:
    state.finished_rounds += 1
    state.round = int(event.get("round") or state.round)
    if event.get("accuracy") is not None:
        state.accuracies.append(float(event["accuracy"]))
    if event.get("loss") is not None:
        state.loss = float(event["loss"])
    if event.get("seconds") is not None:
        state.round_seconds.append(float(event["seconds"]))


def _run_finished(state: ViewState, _event: Mapping[str, Any]) -> None:
    state.finished = True


_CHANGES: dict[str, Callable[[ViewState, Mapping[str, Any]], None]] = {
    "listening": _listening,
    "waiting_for_nodes": _waiting,
    "waiting_for_clients": _waiting,
    "node_joined": _node_joined,
    "node_left": _node_left,
    "local_run_started": _local_run_started,
    "local_round_finished": _local_round_finished,
    "run_started": _run_started,
    "run_resumed": _run_started,
    "managers_starting": _managers,
    "manager_spawned": _managers,
    "discriminators": _discriminators,
    "distances_found": _distances_found,
    "round_started": _round_started,
    "hop_finished": _hop_finished,
    "client_skipped": _client_skipped,
    "group_finished": _group_ended,
    "group_failed": _group_ended,
    "round_finished": _round_finished,
    "run_finished": _run_finished,
}
