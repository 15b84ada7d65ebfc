"""What ends an order without a result."""

from __future__ import annotations

from fedgsp.messages import Failure


class OrderError(Exception):
    """An order that was not carried out; carries the reason as a value."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure
