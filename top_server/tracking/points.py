"""What a tracker is told of a run, made from the events of the run."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from fedgsp.programs import PROGRAMS
from top_server.record.scores import score_of, scores_of
from top_server.recorded import BEGINS
from top_server.tracking.base import Outcome, Points

ROUND = "round_finished"
ENDS = {"run_finished": "finished", "run_failed": "failed", "run_stopped": "stopped"}
#: The events that count here. All other lines of events.jsonl need not be parsed.
KINDS = frozenset(
    (*BEGINS, *ENDS, ROUND, "round_resumed", "round_started", "round_failed", "hop_finished", "client_skipped")
)
#: Programs by which the top server asks clients something, outside of the training of a round.
_SURVEYS = frozenset(name for name, program in PROGRAMS.built_in.items() if not program.trains)
_BY_CLIENT = ("accuracy_per_client", "score_per_client", "metrics_per_client")


class Gathered:
    """Puts the figures of a round together while its events come."""

    def __init__(self) -> None:
        self._hops: dict[int, Mapping[str, Any]] = {}
        self._skipped: dict[int, int] = {}  # client -> group
        self._resumed = False

    def note(self, event: Mapping[str, Any]) -> Points | Outcome | None:
        """Takes an event; returns the points of a round that is finished, or the end of the run.

        Raises one of `MALFORMED` if a damaged event comes.
        """
        kind = event["event"]
        if kind in ENDS:
            reason = "; ".join(str(text) for text in (event.get("reason"), event.get("remedy")) if text)
            return Outcome(ENDS[kind], time_of(event), reason)
        if kind == ROUND:
            points = Points(int(event["round"]), time_of(event), finite({**_of_row(event), **dict(self._of_work())}))
            self._forget()
            return points
        if kind == "round_resumed":
            self._resumed = True  # `round_started` follows; the hops before the interruption count
        elif kind in ("round_started", "round_failed") and not self._resumed:
            self._forget()
        elif kind == "round_started":
            self._resumed = False
        elif kind == "hop_finished":
            self._hops[int(event["client"])] = event  # the last one counts if a client trains again
        elif kind == "client_skipped" and event.get("program") not in _SURVEYS:
            self._skipped[int(event["client"])] = int(event["group"])
        return None

    def _forget(self) -> None:
        self._hops.clear()
        self._skipped.clear()
        self._resumed = False

    def _of_work(self) -> Iterator[tuple[str, Any]]:
        for client, hop in self._hops.items():
            yield f"client/{client}/train_loss", hop.get("loss")
            yield f"client/{client}/train_seconds", hop.get("seconds")
        groups: dict[int, list[Mapping[str, Any]]] = {}
        for hop in self._hops.values():
            groups.setdefault(int(hop["group"]), []).append(hop)
        skipped = Counter(self._skipped.values())
        for group in sorted(groups.keys() | skipped.keys()):
            hops = groups.get(group, [])
            yield f"group/{group}/clients_trained", len(hops)
            yield f"group/{group}/clients_skipped", skipped[group]
            yield f"group/{group}/bytes", sum(hop.get("bytes") or 0 for hop in hops)
            samples = sum(hop.get("samples") or 0 for hop in hops)
            losses = [hop.get("loss") for hop in hops]
            if samples and None not in losses:
                total = sum(float(hop["loss"]) * (hop.get("samples") or 0) for hop in hops)
                yield f"group/{group}/train_loss", total / samples


def time_of(event: Mapping[str, Any]) -> datetime:
    """The moment of an event."""
    return datetime.fromisoformat(str(event["time"]))


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """The values that are finite numbers, as floats."""
    numbers = {name: value for name, value in values.items() if type(value) in (int, float)}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def _of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a row of the history, and of its part for validation data."""
    found = {name: value for name, value in row.items() if name != "round" and name not in _BY_CLIENT}
    found |= {f"metrics/{name}": value for name, value in (row.get("metrics") or {}).items()}
    found["score"] = score_of(row)
    for client, score in scores_of(row).items():
        found[f"client/{client}/score"] = score
    for name, by_client in (row.get("metrics_per_client") or {}).items():
        found |= {f"client/{client}/{name}": value for client, value in by_client.items()}
    return found | {f"validation/{name}": value for name, value in _validation(row).items()}


def _validation(row: Mapping[str, Any]) -> dict[str, Any]:
    part = {key: value for key, value in (row.get("validation") or {}).items() if key != "behind_score"}
    return {name: value for name, value in _of_row(part).items() if not name.startswith("client/")} if part else {}
