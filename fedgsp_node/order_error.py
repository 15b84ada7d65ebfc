"""The exception for orders that cannot be carried out."""

import contextlib
from collections.abc import Iterator

from fedgsp.errors import is_full
from fedgsp.messages import Failure, FailureCode


class OrderError(Exception):
    """An order failed; `failure` is the reason, which the manager gets."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure

    @classmethod
    def require(cls, fits: object, code: FailureCode, detail: str) -> None:
        """Raises this error, with this code and detail, unless the condition `fits` is true."""
        if not fits:
            raise cls(Failure(code, detail))


def failure_of(error: Exception, code: FailureCode = FailureCode.UNSPECIFIED) -> Failure:
    """The failure that an exception stands for, with this code; NO_ROOM if a disk of this node is full."""
    full = is_full(error) or is_full(error.__cause__)
    return Failure(FailureCode.NO_ROOM if full else code, str(error))


@contextlib.contextmanager
def failing(code: FailureCode, *kinds: type[Exception]) -> Iterator[None]:
    """Inside the context, exceptions of these kinds fail the order: they become an OrderError.

    It has the failure of `failure_of` with this code.
    """
    try:
        yield
    except kinds as error:
        raise OrderError(failure_of(error, code)) from error
