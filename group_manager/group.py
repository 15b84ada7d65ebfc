"""What a program gets to run one group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedgsp.channels import Channels
from fedgsp.messages import Failure, GroupEvent, GroupResult, ModelRef, RunGroupRequest, Source
from fedgsp.model_store import ModelStore
from fedgsp.programs import PROGRAMS
from group_manager.ledger import Ledger
from group_manager.members import Members
from group_manager.models import Models
from group_manager.orders import Orders
from group_manager.reports import Reports


class Group:
    """Everything that a program needs to run one group.

    The group has its request, its orders to nodes, the weights at this manager, and its reports to the top server.
    """

    def __init__(
        self,
        request: RunGroupRequest,
        members: Members,
        store: ModelStore,
        channels: Channels,
        manager: Source,
        tell: Callable[[GroupEvent], None],
    ) -> None:
        self.request = request
        self.program = PROGRAMS[request.program]
        self.ledger = Ledger(request)
        self.reports = Reports(tell)
        self.orders = Orders(request, members, self.ledger)
        self.manager = manager
        self.models = Models(request, self.ledger, self.orders, self.reports, store, channels)

    def result(self, ref: ModelRef | None = None, samples: int = 0) -> GroupResult:
        """The group's result so far; without `ref`, the program makes no model."""
        return GroupResult(ref or ModelRef(""), samples, self.reports.bytes_direct, self.reports.bytes_relayed)

    @property
    def options(self) -> Any:
        """The options of the program, as the dataclass that its declaration names."""
        return self.program.read(self.request.program_options)

    def nobody_trained(self) -> Failure:
        """The failure of a group in which every member was skipped."""
        reason = self.reports.reason
        return Failure(reason.code, f"no member trained; the last reason: {reason.detail}")

    def close(self, result_id: str) -> None:
        """Cancels open orders. The nodes and this manager then forget the group's models.

        This manager keeps the result, and the models that the top server has yet to fetch (RESERVED in the ledger).
        """
        self.orders.close()
        self.models.close(result_id)
