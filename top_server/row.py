"""What the history says of a round: reads, and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from top_server.grouping import Plan
from top_server.grouping.cpd import cpd_median
from top_server.groups.moved import Moved
from top_server.local_run import gains
from top_server.record.costs import CostModel

if TYPE_CHECKING:
    from top_server.evaluation import Evaluation
    from top_server.groups.task import GroupOutcome
    from top_server.run import Run


@dataclass(frozen=True, slots=True)
class Teams:
    """The groups of a round, and those of them that train."""

    plan: Plan
    sampled: tuple[tuple[int, ...], ...]


def row_of(
    run: Run,
    number: int,
    teams: Teams,
    outcomes: Sequence[GroupOutcome],
    evaluated: Evaluation | None,
    seconds: float,
) -> dict[str, Any]:
    """The row of round `number`."""
    costs = _costs(run, teams)
    moved = sum((outcome.moved for outcome in outcomes), Moved())
    row: dict[str, Any] = {
        "round": number,
        "groups": len(teams.plan.groups),
        "sampled_groups": len(teams.sampled),
        "clients_trained": sum(len(outcome.took_part) for outcome in outcomes),
        "clients_skipped": sum(len(outcome.left_out) for outcome in outcomes),
        "seconds": round(seconds, 3),
        "bytes_direct": moved.direct,
        "bytes_relayed": moved.relayed,
        "cpd_median": _cpd(run, teams.plan),
        "t_comp_s": costs.t_comp_s(len(teams.plan.groups) if run.scheme.program == "relay" else costs.clients),
        "t_comm_s": costs.t_comm_s(),
        "d_comm_bytes": costs.d_comm_bytes(),
    }
    # Where nobody is drawn, or models differ, the result is who trains with whom, and how well each is served.
    each = run.scheme.sampling == "none" or not run.merging.shared
    if each:
        row["partition"] = [list(group) for group in teams.plan.groups]
    return row if evaluated is None else {**row, **_served(run, evaluated, each)}


def _served(run: Run, evaluated: Evaluation, each: bool) -> dict[str, Any]:
    """How well the clients are served, `each` of them or all together."""
    found: dict[str, Any] = {
        "accuracy": evaluated.accuracy,
        "loss": evaluated.loss,
        "clients_evaluated": len(evaluated.of),
    }
    if each:
        found["accuracy_per_client"] = evaluated.per_client
    if evaluated.metrics:
        found["metrics_per_client"] = evaluated.metrics
    if run.alone is not None:
        found["ipr"], found["rsd"] = gains(evaluated.per_client, run.alone) or (None, None)
    return found


def _cpd(run: Run, plan: Plan) -> float | None:
    if not run.histograms or len(plan.groups) < 2:
        return None
    known = [[client for client in group if client in run.histograms] for group in plan.groups]
    return cpd_median(np.stack([run.histogram_rows(group).sum(axis=0) for group in known if group]))


def _costs(run: Run, teams: Teams) -> CostModel:
    busy = {client for group in teams.sampled for client in group} if run.scheme.sampling == "none" else None
    sizes = [
        hosted.train_samples for client, hosted in run.membership.clients.items() if busy is None or client in busy
    ]
    paper = CostModel()
    parameters = sum(math.prod(spec.shape) for spec in run.membership.tensors if spec.trainable)
    return CostModel(
        clients=len(sizes),
        sampling_rate=run.config.sampling_rate if run.scheme.sampling != "none" else 1.0,
        local_epochs=run.config.local_epochs,
        samples_per_client=sum(sizes) / max(1, len(sizes)),
        model_bytes=run.model_bytes,
        flop_per_sample=run.membership.training_flop or paper.flop_per_sample,
        flop_per_aggregation=parameters,
    )
