"""Which clients missed which rounds of a run, and why. Clients that were not drawn for a round do not miss it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedgsp.messages import FailureCode

#: Codes of absences, beside those of failures (`protos/fedgsp/v1/failure.proto`).
AWAY, LEFT_OUT, GROUP_FAILED = "AWAY", "LEFT_OUT", "GROUP_FAILED"
#: Codes of clients whose node was away when a round began, or left in it.
_WITH_NODE = (AWAY, FailureCode.NODE_LOST.name)


@dataclass(frozen=True, slots=True)
class Missed:
    """Why a client missed a round."""

    #: Reasons with the same code count as the same.
    code: str
    reason: str
    #: For how long its node was away, as far as is known; None if that is not the reason.
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Absence:
    """Rounds in a row that clients missed for the same reason."""

    clients: tuple[int, ...]
    first: int
    last: int
    why: Missed

    def to_json(self) -> dict[str, Any]:
        """The absence as it stands in summary.json."""
        told: dict[str, Any] = {"clients": list(self.clients), "first": self.first, "last": self.last}
        told |= {"code": self.why.code, "reason": self.why.reason}
        return told if self.why.seconds is None else {**told, "seconds": round(self.why.seconds, 1)}


class Absences:
    """The absences of a run so far."""

    __hash__ = None  # type: ignore[assignment]  # they change

    def __init__(self, by_client: Mapping[int, Sequence[Absence]] | None = None) -> None:
        self._of: dict[int, list[Absence]] = {client: list(found) for client, found in (by_client or {}).items()}

    def note(self, number: int, missed: Mapping[int, Missed]) -> None:
        """Round `number` is over; these clients missed it."""
        for client, why in missed.items():
            found = self._of.setdefault(client, [])
            if found and found[-1].last == number - 1 and found[-1].why.code == why.code:
                seconds = why.seconds if why.seconds is not None else found[-1].why.seconds
                found[-1] = replace(found[-1], last=number, why=replace(found[-1].why, seconds=seconds))
            else:
                found.append(Absence((client,), number, number, why))

    def came_back(self, number: int, seconds: Mapping[int, float]) -> None:
        """By the end of round `number`, these clients were there again after so many seconds.

        A client may have been away without missing a round: then this is not the duration of an older absence.
        """
        for client, away_s in seconds.items():
            found = self._of.get(client)
            if found and found[-1].why.code in _WITH_NODE and found[-1].last >= number - 1:
                longest_s = max(away_s, found[-1].why.seconds or 0.0)
                found[-1] = replace(found[-1], why=replace(found[-1].why, seconds=longest_s))

    def together(self) -> list[Absence]:
        """All absences by their first round. Those of several clients in the same rounds, with one reason, are one."""
        groups: dict[tuple[int, int, Missed], list[int]] = {}
        for client, found in sorted(self._of.items()):
            for one in found:
                seconds = None if one.why.seconds is None else round(one.why.seconds, 1)
                groups.setdefault((one.first, one.last, replace(one.why, seconds=seconds)), []).append(client)
        ordered = sorted(groups.items(), key=lambda group: (group[0][0], group[1]))
        return [Absence(tuple(clients), first, last, why) for (first, last, why), clients in ordered]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Absences) and self._of == other._of

    def __iter__(self) -> Iterator[Absence]:
        return (one for _, found in sorted(self._of.items()) for one in found)

    def to_json(self) -> list[dict[str, Any]]:
        """All absences, client by client."""
        return [one.to_json() for one in self]

    @classmethod
    def from_json(cls, saved: Iterable[Mapping[str, Any]]) -> "Absences":
        """The inverse; raises KeyError, TypeError or ValueError if a value is missing or damaged."""
        of: dict[int, list[Absence]] = {}
        for one in saved:
            (client,) = map(int, one["clients"])
            seconds = one.get("seconds")
            why = Missed(str(one["code"]), str(one["reason"]), None if seconds is None else float(seconds))
            of.setdefault(client, []).append(Absence((client,), int(one["first"]), int(one["last"]), why))
        return cls(of)
