"""Class histograms: raw counts per class of each client's training part (FedGSP, section 1.3)."""

from __future__ import annotations

from fedgsp.messages import MOST_SAMPLES, Described, FailureCode, MemberDone
from top_server.evidence import Evidence
from top_server.groups.task import GroupTask
from top_server.profiles.base import Profile, survey


class Histograms(Profile):
    """Asks each client once."""

    async def gather(self, round_number: int) -> Evidence:
        """One whose answer cannot be used is left out, and the reason recorded."""
        run = self.run
        unknown = tuple(client for client in run.membership.clients if client not in run.histograms)
        if unknown:
            outcome = await survey(run, round_number, GroupTask(0, "describe", unknown))
            for done in outcome.done:
                self._take(round_number, done)
        known = tuple(client for client in run.membership.clients if client in run.histograms)
        return Evidence(known, run.histogram_rows(known) if known else None)

    def _take(self, round_number: int, done: MemberDone) -> None:
        run = self.run
        counts = done.result.class_counts if isinstance(done.result, Described) else ()
        classes = run.membership.num_classes
        if len(counts) == classes and 0 < sum(counts) <= MOST_SAMPLES:
            run.histograms[done.client] = counts
            return
        what = f"its class histogram has {len(counts)} entries with {sum(counts)} samples"
        reason = f"{what}, the task {classes} classes: let class_counts() count the samples of each"
        run.journal.record(
            "client_skipped",
            round=round_number,
            group=0,
            program="describe",
            client=done.client,
            code=FailureCode.BAD_ORDER.name,
            reason=reason,
        )
