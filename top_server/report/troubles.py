"""What went wrong in a run, by its events: each kind of trouble, whom it met, how often, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedgsp.visible import visible
from fedgsp.words import with_name
from top_server.record.journal import Line
from top_server.report.remedies import remedy_of

#: Kind of event -> what it means, for people.
TROUBLES = {
    "client_skipped": "was skipped",
    "clients_away": "was away when a round began",
    "client_left_out": "is left out of the rest of the run",
    "model_lost": "has lost its model",
    "model_not_saved": "has no saved model",
    "update_missing": "did not reveal its update",
    "newcomers_wait": "had to wait for the model to start from",
    "not_compared": "was not compared with others",
    "question_failed": "could not answer a question",
    "rerouted": "got its model another way",
    "node_left": "left",
    "worker_ended": "ended",
    "node_joined": "has another file of the task than other nodes",
    "node_refused": "was refused",
    "node_revoked": "was revoked",
    "identity_used_twice": "was connected twice",
    "manager_lost": "was lost",
    "group_resumed": "was taken over by another group manager",
    "group_failed": "failed",
    "clients_missing": "did not come back",
    "metric_left_out": "is left out of a figure",
    "fields_left_out": "is too long, and lacks values of single clients",
    "round_failed": "failed",
    "round_waits": "waited for clients",
    "trained_nobody": "trained nobody",
    "not_evaluated": "was not evaluated",
    "initial_model_failed": "could not be made",
    "initial_models_differ": "was not the same on all nodes",
    "state_damaged": "could not be read",
    "nodes_refused": "were refused",
    "groups_doubted": "may not be wanted",
}
#: Kinds that concern the whole run -> their subject.
_SUBJECTS = {
    "initial_model_failed": "the initial model",
    "initial_models_differ": "the initial model",
    "state_damaged": "the saved state",
    "nodes_refused": "further nodes",
    "fields_left_out": "the record",
    "groups_doubted": "the groups",
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """The same thing that happened to the same client, node, manager, group or round."""

    who: str
    what: str
    times: int
    #: The first and the last round in which it happened; 0 outside of rounds.
    first: int
    last: int
    #: The reason that was given last.
    reason: str
    #: What a person can do.
    remedy: str = ""

    @property
    def rounds(self) -> str:
        """The rounds in words; empty outside of rounds."""
        if not self.last:
            return ""
        return f"{self.last}" if self.first == self.last else f"{self.first} to {self.last}"


def is_trouble(event: Mapping[str, Any]) -> bool:
    """Whether something went wrong.

    A node that was dismissed at the end of the run has only done its duty, and most nodes join with the same task.
    """
    if event.get("event") == "node_joined":
        return event.get("differs_from") is not None
    return event.get("event") in TROUBLES and event.get("reason") != "dismissed"


def troubles(events: Iterable[Line], names: Mapping[int, str]) -> list[Trouble]:
    """What went wrong, most frequent first; `names` are what people call clients."""
    found: dict[tuple[str, str], Trouble] = {}
    for event in filter(is_trouble, events):
        what = TROUBLES[event["event"]]
        number = _number(event.get("round"))
        for who in _whom(event, names):
            before = found.get((who, what), Trouble(who, what, 0, number, number, ""))
            reason = visible(str(event.get("reason") or event.get("remedy") or before.reason or _other_file(event)))
            found[who, what] = Trouble(
                who, what, before.times + 1, before.first or number, number, reason, remedy_of(event)
            )
    return sorted(found.values(), key=lambda one: -one.times)


def _other_file(event: Mapping[str, Any]) -> str:
    other = event.get("differs_from")
    return f"its file has digest {event.get('task_digest')}, unlike that of node {other}" if other else ""


def _whom(event: Mapping[str, Any], names: Mapping[int, str]) -> list[str]:
    if (subject := _SUBJECTS.get(event["event"])) is not None:
        return [subject]
    if event["event"] in ("round_failed", "round_waits", "trained_nobody", "not_evaluated"):
        return [f"round {_number(event.get('round'))}"]
    clients = event.get("clients") if isinstance(event.get("clients"), list) else [event.get("client")]
    if known := [client for client in clients or () if type(client) is int]:
        return [f"client {with_name(client, names)}" for client in known]
    for name in ("node", "manager", "group"):
        if event.get(name) is not None:
            noun = "group manager" if name == "manager" else name
            return [f"{noun} {visible(str(event[name]))}"]
    return ["the run"]


def _number(value: Any) -> int:
    return value if type(value) is int else 0
