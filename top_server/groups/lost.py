"""Failures of a lost node, client or manager: the same question can be asked again once they are back."""

from collections import Counter
from collections.abc import Sequence

from fedgsp.errors import RunError
from fedgsp.messages import Failure, FailureCode
from top_server.groups.moved import NOTHING, Moved

#: The codes of such failures. UNKNOWN_CLIENT: the node has come back without the client, which may come later.
LOST = frozenset(
    {
        FailureCode.NODE_LOST,
        FailureCode.UNKNOWN_CLIENT,
        FailureCode.UNREACHABLE,
        FailureCode.STALLED,
        FailureCode.CUT_SHORT,
    }
)
_SMALLER_STEPS = "play a run with a smaller --learning-rate, or with --clip-norm"
#: What to do if the reason itself says what to do about the code of a task or of a package.
_AS_TOLD = (
    "do what the reason says, start the nodes again, then resume. If it changes a setting, begin a new run: a resumed"
    " one keeps its settings"
)
#: What to do if most failures have this code; the run can be resumed afterwards.
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
    """Nobody answered, and somebody was lost, for example with the network. The question can be asked again."""

    #: What was moved in vain, if it is about a round: the next try of the round counts it, too.
    moved: Moved = NOTHING


def usual(failures: Sequence[Failure]) -> Failure:
    """The last failure of the kind that is most frequent; of several such kinds, the one that came last."""
    times = Counter(failure.code for failure in failures)
    return max(reversed(failures), key=lambda failure: times[failure.code])


def unanswered(what: str, failures: Sequence[Failure]) -> RunError:
    """The error for a question that nobody answered: an AllLostError if a failure was a loss, else a RunError.

    A client that was lost may answer the next time, even if all others refuse. The remedy is that of the most frequent
    kind of failure, if there is one.
    """
    times = Counter(failure.code for failure in failures).most_common(2)
    kind = RunError if LOST.isdisjoint(failure.code for failure in failures) else AllLostError
    remedy = None
    if times and (len(times) == 1 or times[0][1] > times[1][1]):
        remedy = _REMEDIES.get(times[0][0])
        if times[0][0] is FailureCode.TASK_RAISED and "; " in usual(failures).detail:  # an error is "WHAT; REMEDY"
            remedy = _AS_TOLD
    return kind(what, remedy or "see events.jsonl and the logs in the run directory")
