"""Failures of a lost node or manager: the same question can be asked again once they are back."""

from collections.abc import Iterable

from fedgsp.errors import RunError
from fedgsp.messages import Failure, FailureCode

#: The codes of such failures.
LOST = frozenset({FailureCode.NODE_LOST, FailureCode.UNREACHABLE, FailureCode.STALLED, FailureCode.CUT_SHORT})
_SMALLER_STEPS = "play a run with a smaller --learning-rate, or with --clip-norm"
#: What to do if every failure has this code; the run can be resumed afterwards.
_REMEDIES = {
    FailureCode.POLICY: "if their owners agree, start the nodes with what the reason names, then resume",
    FailureCode.BAD_ORDER: (
        "change what the reason names: settings in a new run, because a resumed one keeps them; all else before you"
        " resume"
    ),
    FailureCode.TASK_RAISED: (
        "correct the task, or its data, as the reason says; start the nodes again, then resume. If the reason names a"
        " setting, begin a new run: a resumed one keeps its settings"
    ),
    FailureCode.DIVERGED: _SMALLER_STEPS,
    FailureCode.NOT_FINITE: _SMALLER_STEPS,
}


class AllLostError(RunError):
    """Nobody answered, and every failure was a loss, for example of the network. The question can be asked again."""


def unanswered(what: str, failures: Iterable[Failure | None]) -> RunError:
    """The error for a question that nobody answered: an AllLostError if every failure was a loss, else a RunError."""
    codes = {failure.code if failure is not None else FailureCode.UNSPECIFIED for failure in failures}
    kind = AllLostError if codes and codes <= LOST else RunError
    remedy = _REMEDIES.get(next(iter(codes))) if len(codes) == 1 else None
    return kind(what, remedy or "see events.jsonl and the logs in the run directory")
