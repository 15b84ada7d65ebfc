"""The state of a run that the live view shows, gathered from its events; no drawing and no clock here."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fedgsp.scoring import ACCURACY, LOSS
from fedgsp.seldom import is_told
from fedgsp.words import share
from top_server.view.lines import count, describe, figures

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
    #: The clients that have trained; some train again.
    trained: set[int] = field(default_factory=set)
    skipped: int = 0
    #: "training", "finished" or "failed".
    state: str = "training"

    @property
    def hops(self) -> int:
        """How many clients have trained."""
        return len(self.trained)


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
    #: Clients whose trainings a resumed run has kept, in the round that begins next.
    kept: set[int] = field(default_factory=set)
    groups: dict[int, Group] = field(default_factory=dict)
    #: None unless distances between clients are being measured.
    discriminators: Discriminators | None = None
    finished_rounds: int = 0
    #: What people call clients; of clients that have names.
    names: dict[int, str] = field(default_factory=dict)
    #: The figure that rates the models, in each evaluated round, and its name.
    ratings: list[float] = field(default_factory=list)
    rated_by: str = ACCURACY
    #: Metrics of the task in the last evaluated round, at most some.
    metrics: dict[str, float] = field(default_factory=dict)
    loss: float | None = None
    started: datetime | None = None
    finished: bool = False
    round_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS))
    last_events: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_EVENTS))
    #: Node and clients of it that are away -> how many rounds began without them.
    absences: dict[tuple[str, str], int] = field(default_factory=dict)

    def apply(self, event: Mapping[str, Any]) -> str | None:
        """Update the state by one event and return the event's line, or None; unknown events change nothing."""
        self._change(event["event"], event)
        line = describe(event, self.names)
        if line is not None and event["event"] in ("node_joined", "node_left") and event.get("reason") != "dismissed":
            line += f" ({self.present})"
        if line is not None and event["event"] == "clients_away":
            line = self._seldom(line, event)
        if line is not None and event["event"] not in _IN_NUMBERS:
            self.last_events.append(line)
        return line

    def _seldom(self, line: str, event: Mapping[str, Any]) -> str | None:
        """The line of the first round that begins without the clients of a node, the tenth, the hundredth, ..."""
        away = str(event.get("node")), str(event.get("clients"))
        number = self.absences[away] = self.absences.get(away, 0) + 1
        if not is_told(number):
            return None
        return line if number == 1 else f"{line} ({number} times so far)"

    def _forget_absences(self, node: str) -> None:
        self.absences = {away: number for away, number in self.absences.items() if away[0] != node}

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

    def _change(self, kind: str, event: Mapping[str, Any]) -> None:
        match kind:
            case "listening":
                self.address = str(event.get("address", ""))
            case "waiting_for_nodes" | "waiting_for_clients":
                self.all_nodes = max(self.all_nodes, count(event.get("nodes")))
                self.all_clients = max(self.all_clients, count(event.get("clients")))
            case "node_joined":
                self.names |= {int(client): str(name) for client, name in (event.get("names") or {}).items()}
                self.nodes[str(event.get("node"))] = count(event.get("clients"))
                self._forget_absences(str(event.get("node")))
                self.all_nodes = max(self.all_nodes, len(self.nodes))
                self.all_clients = max(self.all_clients, self.clients)
            case "node_left":
                self.nodes.pop(str(event.get("node")), None)
                self._forget_absences(str(event.get("node")))  # it may have come back too late for a round
            case "run_started" | "run_resumed" | "local_run_started":
                alone = kind == "local_run_started"
                self.scheme = "alone" if alone else str(event.get("scheme", ""))
                self.rounds = count(event.get("rounds"))
                self.started = datetime.fromisoformat(event["time"])
                # A local run may have left other values; a resumed run begins after the last round that was saved.
                self.finished_rounds = count(event.get("round"))
                self.round = 1 if alone else self.finished_rounds
                self.ratings.clear()
                self.metrics.clear()
                self.round_seconds.clear()
            case "managers_starting" | "manager_spawned":
                self.managers_starting = count(event.get("managers"))
                self.managers_ready = count(event.get("ready"))
            case "discriminators":
                self.discriminators = Discriminators(
                    *(count(event.get(name)) for name in ("exchanges", "left", "networks"))
                )
            case "distances_found":
                self.discriminators = None
            case "round_resumed":
                self.kept = set(event.get("kept") or ())
            case "round_started":
                self.round = int(event.get("round") or 0)
                self.sampled_groups = count(event.get("sampled_groups"))
                teams = enumerate(event.get("teams") or ())
                self.groups = {i: Group(i, count(team), self.kept.intersection(team)) for i, team in teams}
                self.kept = set()
            case "hop_finished" if group := self._in_training(event):
                group.members = count(event.get("members"))
                group.trained.add(event.get("client", -1))
            case "client_skipped" if group := self._in_training(event):
                group.skipped += 1
            case "group_finished" | "group_failed" if group := self.groups.get(event.get("group", -1)):
                group.state = kind.removeprefix("group_")
            case "round_finished" | "local_round_finished":
                self.finished_rounds += 1
                self.round = int(event.get("round") or self.round)
                self._evaluated(event)
                if event.get("seconds") is not None:
                    self.round_seconds.append(float(event["seconds"]))
                if kind == "local_round_finished":
                    self.round = min(self.round + 1, self.rounds)
            case "run_finished":
                self.finished = True

    def _evaluated(self, event: Mapping[str, Any]) -> None:
        told = figures(event)
        rating = next(iter(told), ACCURACY)
        rated, loss = told.get(rating, "-") != "-", event.get("loss")
        if rated:
            self.rated_by = rating
            self.ratings.append(float(told.pop(rating)))
        if rated or loss is not None:  # evaluated: a loss that is no number any more is none
            self.loss = None if loss is None else float(loss)
        if event.get("metrics") is not None:
            self.metrics = {name: float(value) for name, value in told.items() if name != LOSS and value != "-"}

    def _in_training(self, event: Mapping[str, Any]) -> Group | None:
        """The group of an event; None for events of a survey, which asks clients something outside the training.

        Surveys come before and after the training of a round, and use group numbers too.
        """
        group = self.groups.get(event.get("group", -1))
        return group if group and group.state == "training" and event.get("round") == self.round else None
