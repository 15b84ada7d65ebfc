"""What a check has found: lines that say what is good, and what to do about the rest."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from fedgsp.errors import UserError
from fedgsp.visible import visible


class State(StrEnum):
    """How the thing is that a line is about."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"
    #: It could not be looked at, because of another line.
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was checked: how it is, in words, and what to do."""

    name: str
    state: State
    words: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        return visible(f"{self.state:<9}  {self.name:<18}  {self.words}{remedy}")


def failed(name: str, error: UserError) -> Line:
    """The line of a thing whose check has ended with an error."""
    return Line(name, State.BAD, error.what, error.remedy)


@dataclass(frozen=True, slots=True)
class Report:
    """The lines of a check."""

    lines: Sequence[Line]

    @property
    def good(self) -> bool:
        """Whether every line is good."""
        return all(line.state is State.GOOD for line in self.lines)

    def __str__(self) -> str:
        counts = Counter(line.state for line in self.lines)
        sums = ", ".join(f"{counts[state]} {state}" for state in State if counts[state])
        return "\n".join([*map(str, self.lines), f"{len(self.lines)} checks: {sums}"])

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values: `good`, and `checks` with name, state, words and remedy of each line."""
        return {"good": self.good, "checks": [asdict(line) for line in self.lines]}
