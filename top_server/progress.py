"""What changes in a run from round to round, apart from the models. `Progress` saves and restores itself."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from top_server.absences import Absences
from top_server.best import Best
from top_server.grouping import Plan
from top_server.models import Held
from top_server.remembered import kept, remembered, restore_of, saved_of


def _recent(lengths: Any = ()) -> deque[float]:
    return deque(lengths, maxlen=200)


def _plan_from_json(saved: Any) -> Plan | None:
    if saved is None:
        return None
    groups, idle = saved
    named = [client for group in (*groups, idle) for client in group]
    if not all(groups) or len(set(named)) != len(named):
        raise ValueError("a group is empty, or a client is in two groups")
    return Plan(tuple(map(tuple, groups)), tuple(idle))


@dataclass(slots=True)
class Progress:
    """The progress of a run after its last finished round. Each field names the one place that changes it."""

    #: The groups of the last round; None before the first one. Written by `rounds`.
    plan: Plan | None = kept(lambda: None, lambda plan: plan and [plan.groups, plan.idle], _plan_from_json)
    #: Clients of the first plan whose models are intact; a group of only such clients may skip rounds. Written by
    #: `rounds`.
    first_clients: frozenset[int] = kept(frozenset, sorted, frozenset)
    #: Clients whose models were lost since the last round began; they start again. Written by `groups.taking`, and
    #: emptied by `rounds`.
    afresh: set[int] = kept(set, sorted, set)
    #: For schemes in which nodes retain what clients train: each client's last model. Written by `rounds`.
    local_models: dict[int, Held] = remembered(Held.from_json, Held.to_json, init=True)
    #: Recent update norms; a window, because norms shrink during training. Written by `rounds`.
    update_lengths: deque[float] = kept(_recent, list, _recent)
    #: For clients that keep a head or a personal model on their node: the round of the first. Written by
    #: `groups.watch`.
    began: dict[int, int] = remembered(int, init=True)
    #: The best round by validation. Written by `playing`.
    best: Best = kept(Best, Best.to_json, Best.from_json)
    #: How many of the last rounds, one after the other, trained nobody. Written by `rounds`.
    in_vain: int = kept(int, int, int)
    #: Which clients missed which rounds. Written by `rounds`.
    absences: Absences = kept(Absences, Absences.to_json, Absences.from_json)
    #: Figure -> the clients that it left out in the last evaluation. Written by `evaluation`.
    left_out: dict[str, list[int]] = kept(dict, dict, dict)

    def save(self) -> dict[str, Any]:
        """All fields as JSON."""
        return saved_of(self)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The inverse, in place; raises KeyError, TypeError or ValueError if a field is missing or damaged."""
        restore_of(self, saved)

    def note_kept(self, client: int, round_number: int, afresh: bool) -> bool:
        """Notes that a client trained with tensors that stay on its node.

        Returns True if the client began them anew (`afresh`) although it had them in an earlier round: they were lost.
        """
        lost = afresh and self.began.get(client, round_number) < round_number
        if lost:
            self.note_missing(client)
        self.began.setdefault(client, round_number)
        return lost

    def note_missing(self, client: int) -> bool:
        """Notes that a node no longer has the tensors that a client kept; False if that was known."""
        return self.began.pop(client, None) is not None
