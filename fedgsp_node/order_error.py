"""The exception for orders that cannot be carried out."""

from __future__ import annotations

from fedgsp.messages import Failure


class OrderError(Exception):
    """An order failed; `failure` is the reason, which the manager gets."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure
