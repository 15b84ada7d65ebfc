"""Class histograms: raw counts per class of each client's training part (FedGSP, section 1.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedgsp.messages import MOST_SAMPLES, Described, FailureCode, MemberDone
from fedgsp.parts import NoOptions
from top_server.evidence import Evidence
from top_server.groups.task import GroupTask
from top_server.profiles.base import Profile
from top_server.record.events.rounds import ClientSkipped
from top_server.remembered import remembered


@dataclass(eq=False)
class Histograms(Profile[NoOptions]):
    """Asks each client once for the class histogram of its training part."""

    _known: dict[int, tuple[int, ...]] = remembered(tuple)

    @property
    def histograms(self) -> Mapping[int, tuple[int, ...]]:
        """The usable histograms so far, shape (classes,) each."""
        return self._known

    async def gather(self, round_number: int) -> Evidence:
        """Histograms of shape (N, classes), of the clients that gave a usable one."""
        unknown = tuple(client for client in self.context.membership.clients if client not in self._known)
        if unknown:
            outcome = await self.ask(round_number, GroupTask(0, "describe", unknown))
            for done in outcome.done:
                self._take(round_number, done)
        known = tuple(client for client in self.context.membership.clients if client in self._known)
        return Evidence(known, np.array([self._known[client] for client in known], np.int64) if known else None)

    def _take(self, round_number: int, done: MemberDone) -> None:
        counts = done.result.class_counts if isinstance(done.result, Described) else ()
        classes = self.context.membership.num_classes
        if len(counts) == classes and 0 < sum(counts) <= MOST_SAMPLES:
            self._known[done.client] = counts
            return
        reason = (
            f"its class histogram has {len(counts)} entries with {sum(counts)} samples, the task {classes} classes:"
            " let class_counts() count the samples of each"
        )
        self.context.journal.record(
            ClientSkipped(
                round=round_number,
                group=0,
                program="describe",
                client=done.client,
                code=FailureCode.BAD_ORDER.name,
                reason=reason,
            )
        )
