"""What the view of a run shows, gathered from its events; no drawing and no clock here."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LAST_EVENTS = 4
#: Rounds whose mean duration tells how long those to come will take: later ones have more groups than the first.
RECENT_ROUNDS = 5
#: Lines about a local run, at most, where every line stays.
LOCAL_RUN_LINES = 10
#: Events that the display shows in its numbers.
_IN_NUMBERS = ("round_finished", "local_round_finished", "discriminators")


@dataclass(slots=True)
class Group:
    """A group of the round that is on."""

    number: int
    members: int = 0
    hops: int = 0
    skipped: int = 0
    #: "training", "finished" or "failed".
    state: str = "training"


@dataclass(slots=True)
class Discriminators:
    """How far the networks are that tell the clients' data apart."""

    exchanges: int
    left: int
    pairs: int


@dataclass(slots=True)
class ViewState:
    """The run as its events told it so far; while every client trains alone first, that run."""

    #: "alone" for a local run.
    scheme: str = ""
    address: str = ""
    nodes: dict[str, int] = field(default_factory=dict)
    rounds: int = 0
    #: The round that is on, or the last one; 0 before the first.
    round: int = 0
    sampled_groups: int = 0
    groups: dict[int, Group] = field(default_factory=dict)
    #: None unless they are trained at the moment.
    discriminators: Discriminators | None = None
    finished_rounds: int = 0
    accuracies: list[float] = field(default_factory=list)
    loss: float | None = None
    started: datetime | None = None
    finished: bool = False
    round_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS))
    last_events: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_EVENTS))

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take in one event; kinds and fields that are not known change nothing."""
        change = _CHANGES.get(event["event"])
        if change is not None:
            change(self, event)
        line = describe(event)
        if line is not None and event["event"] not in _IN_NUMBERS:
            self.last_events.append(line)

    @property
    def clients(self) -> int:
        """Clients that the nodes of the moment host."""
        return sum(self.nodes.values())

    @property
    def seconds_left(self) -> float | None:
        """An estimate from recent rounds, at the end of the last one; None before the first ended."""
        if not self.round_seconds or self.finished:
            return None
        return sum(self.round_seconds) / len(self.round_seconds) * max(self.rounds - self.finished_rounds, 0)


def count(value: Any) -> int:
    """A number of things, told as such or as their list."""
    return len(value) if isinstance(value, list) else int(value or 0)


def _listening(state: ViewState, event: Mapping[str, Any]) -> None:
    state.address = str(event.get("address", ""))


def _node_joined(state: ViewState, event: Mapping[str, Any]) -> None:
    state.nodes[str(event.get("node"))] = count(event.get("clients"))


def _node_left(state: ViewState, event: Mapping[str, Any]) -> None:
    state.nodes.pop(str(event.get("node")), None)


def _run_started(state: ViewState, event: Mapping[str, Any]) -> None:
    state.scheme = str(event.get("scheme", ""))
    state.rounds = count(event.get("rounds"))
    state.started = datetime.fromisoformat(event["time"])
    # What a local run left.
    state.round = state.finished_rounds = 0
    state.accuracies.clear()
    state.round_seconds.clear()


def _local_run_started(state: ViewState, event: Mapping[str, Any]) -> None:
    _run_started(state, {**event, "scheme": "alone"})
    state.round = 1


def _local_round_finished(state: ViewState, event: Mapping[str, Any]) -> None:
    _round_finished(state, event)
    state.round = min(state.round + 1, state.rounds)


def _discriminators(state: ViewState, event: Mapping[str, Any]) -> None:
    state.discriminators = Discriminators(*(count(event.get(name)) for name in ("exchanges", "left", "pairs")))


def _distances_found(state: ViewState, _event: Mapping[str, Any]) -> None:
    state.discriminators = None


def _round_started(state: ViewState, event: Mapping[str, Any]) -> None:
    state.round = int(event.get("round") or 0)
    state.sampled_groups = count(event.get("sampled_groups"))
    teams = event.get("teams")
    state.groups = {i: Group(i, count(team)) for i, team in enumerate(teams)} if isinstance(teams, list) else {}


def _in_training(state: ViewState, event: Mapping[str, Any]) -> Group | None:
    """The group that an event is about; None if it is of a survey: these have numbers, too, but are no groups.

    Surveys are made before the groups of a round begin, with the number of this round or of one before, and after.
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
    "node_joined": _node_joined,
    "node_left": _node_left,
    "local_run_started": _local_run_started,
    "local_round_finished": _local_round_finished,
    "run_started": _run_started,
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


def describe(event: Mapping[str, Any]) -> str | None:
    """One line about an event that a person wants to hear of; None for the others, and for most of a long set-up."""
    template = _LINES.get(event["event"])
    if template is None or not _TOLD.get(event["event"], _always)(event):
        return None
    fields = defaultdict(lambda: "-", {name: _shown(name, value) for name, value in event.items()})
    fields["hosted"] = str(count(event.get("clients")))
    moved = (event.get(name) for name in ("bytes", "bytes_direct", "bytes_relayed"))
    fields["bytes"] = size(sum(count(one) for one in moved))
    return template.format_map(fields)


def _always(_event: Mapping[str, Any]) -> bool:
    return True


def _tenth(event: Mapping[str, Any]) -> bool:
    """Whether a round of a local run ends one of `LOCAL_RUN_LINES` parts of it, or fewer if it is short."""
    number, rounds = count(event.get("round")), count(event.get("rounds"))
    return number == rounds or number % max(1, -(-rounds // LOCAL_RUN_LINES)) == 0


def _round_number(event: Mapping[str, Any]) -> bool:
    """Whether 0 to 9, 10, 20, ... 100, 200, ... exchanges came before: ever fewer, as nobody knows how many follow."""
    return len(str(count(event.get("exchanges")) - 1).rstrip("0")) <= 1


_TOLD: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "local_round_finished": _tenth,
    "discriminators": _round_number,
}


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}" if name == "seconds" else f"{value:.4f}"
    return str(value)


def size(count: float) -> str:
    """Bytes with a unit that keeps the number short."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


_LINES: dict[str, str] = {
    "listening": "listening on {address}",
    "node_joined": "node {node} joined with {hosted} clients",
    "node_left": "node {node} left: {reason}",
    "node_refused": "node {node} was refused: {reason}",
    "manager_lost": "group manager {manager} was lost: {reason}",
    "run_started": "run started: {scheme}, {rounds} rounds, {hosted} clients",
    "state_damaged": "warning: {reason}; the run goes on from the state before, and its rounds since are played again",
    "not_evaluated": "round {round} was not evaluated: {reason}",
    "rerouted": "round {round}, group {group}: the way to client {client} changed: {reason}",
    "client_skipped": "round {round}, group {group}: client {client} was skipped: {reason}",
    "group_failed": "round {round}, group {group} failed: {reason}",
    "newcomers": "round {round}: clients {clients} came while training goes on",
    "client_placed": "round {round}: client {client} came while training goes on, and joined group {group}",
    "layer_chosen": "updates are compared by layer {layer}",
    "discriminators": "telling the clients' data apart: {exchanges} exchanges, {left} of {pairs} pairs left",
    "not_compared": "round {round}: the data of client {client} are not compared with the others': {reason}",
    "distances_found": "round {round}: told the data of {hosted} clients apart in {seconds} s, {bytes}",
    "local_run_started": "every client trains alone for {rounds} rounds first, recorded in {directory}",
    "gains_not_told": "gains over training alone are not told of clients {clients}: {reason}",
    "local_round_finished": "alone: round {round} of {rounds}, accuracy {accuracy}, {seconds} s",
    "update_missing": "the update of client {client} is missing: {reason}",
    "model_lost": "the model of client {client} is lost: {reason}",
    "model_not_saved": "the model of client {client} was not saved: {reason}",
    "clients_served": "accuracy over the clients: mean {mean}, deviation {std}, from {min} to {max}",
    "round_finished": "round {round}: {sampled_groups} of {groups} groups, {clients_trained} clients, "
    "accuracy {accuracy}, loss {loss}, {seconds} s, {bytes}",
    "run_finished": "run finished: {rounds} rounds, accuracy {accuracy}, {seconds} s",
}
