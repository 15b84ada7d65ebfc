"""Failures of a lost node or manager: the same question can be asked again once they are back."""

from collections.abc import Iterable

from fedgsp.errors import RunError
from fedgsp.messages import Failure, FailureCode

#: The codes of such failures.
LOST = frozenset({FailureCode.NODE_LOST, FailureCode.UNREACHABLE, FailureCode.STALLED, FailureCode.CUT_SHORT})


class AllLostError(RunError):
    """Nobody answered, and every failure was a loss, for example of the network. The question can be asked again."""


def unanswered(what: str, failures: Iterable[Failure | None]) -> RunError:
    """The error for a question that nobody answered: an AllLostError if every failure was a loss, else a RunError."""
    codes = {failure.code if failure is not None else FailureCode.UNSPECIFIED for failure in failures}
    kind = AllLostError if codes and codes <= LOST else RunError
    return kind(what, "see events.jsonl and the logs in the run directory")
