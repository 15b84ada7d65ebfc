"""Class histograms: raw counts per class of each client's training part (FedGSP, section 1.3)."""

from __future__ import annotations

from fedgsp.messages import Described, MemberDone
from top_server.run import Run


async def gather(run: Run, round_number: int) -> list[int]:
    """Asks each client once; one whose answer cannot be used is left out, and the reason recorded."""
    unknown = [client for client in run.membership.clients if client not in run.histograms]
    if unknown:
        outcome = await run.survey(round_number, "describe", unknown)
        for done in outcome.done:
            _take(run, round_number, done)
    return [client for client in run.membership.clients if client in run.histograms]


def _take(run: Run, round_number: int, done: MemberDone) -> None:
    counts = done.result.class_counts if isinstance(done.result, Described) else ()
    classes = run.membership.num_classes
    if len(counts) == classes and min(counts) >= 0 and sum(counts) > 0:
        run.histograms[done.client] = counts
        return
    what = f"its class histogram has {len(counts)} entries with {sum(counts)} samples"
    reason = f"{what}; the task has {classes} classes"
    run.journal.record("client_skipped", round=round_number, group=0, client=done.client, reason=reason)
