"""Makes the row of a finished round for history.jsonl; a pure function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgsp.programs import PROGRAMS
from top_server.baseline.local_run import gains
from top_server.evaluation import Evaluation
from top_server.grouping import Plan
from top_server.grouping.cpd import cpd_median
from top_server.groups.moved import Moved
from top_server.groups.task import GroupOutcome
from top_server.record.costs import CostModel
from top_server.record.events.base import ABSENT
from top_server.record.events.rounds import RoundFinished
from top_server.run import RunContext
from top_server.teams import Teams


def row_of(
    context: RunContext,
    number: int,
    teams: Teams,
    outcomes: Sequence[GroupOutcome],
    evaluated: Evaluation | None,
    seconds: float,
    shared: bool,
    histograms: Mapping[int, tuple[int, ...]],
) -> RoundFinished:
    """The row of round `number`.

    `shared` says whether all clients have the same model; `histograms` are the class histograms that clients told.
    """
    costs = _costs(context, teams)
    chained = PROGRAMS[context.scheme.program].chained
    moved = sum((outcome.moved for outcome in outcomes), Moved())
    # Where all clients train, or models differ, the result is who trains with whom, and how well each is served.
    each = context.scheme.sampling == "none" or not shared
    return RoundFinished(
        round=number,
        groups=len(teams.plan.groups),
        sampled_groups=len(teams.sampled),
        clients_trained=sum(len(outcome.took_part) for outcome in outcomes),
        clients_skipped=sum(len(outcome.left_out) for outcome in outcomes),
        seconds=round(seconds, 3),
        bytes_direct=moved.direct,
        bytes_relayed=moved.relayed,
        cpd_median=_cpd(histograms, teams.plan),
        t_comp_s=costs.t_comp_s(len(teams.plan.groups) if chained else costs.clients),
        t_comm_s=costs.t_comm_s(),
        d_comm_bytes=costs.d_comm_bytes(),
        partition=teams.plan.groups if each else ABSENT,
        **(_served(context, evaluated, each) if evaluated is not None else {}),
    )


def _served(context: RunContext, evaluated: Evaluation, each: bool) -> dict[str, Any]:
    """Accuracy and loss over all clients; with `each`, of every client too."""
    found: dict[str, Any] = {**evaluated.overall, "clients_evaluated": len(evaluated.of)}
    if each:
        found["accuracy_per_client"] = evaluated.per_client
    if evaluated.metrics:
        found["metrics_per_client"] = evaluated.metrics
    if context.alone is not None:
        found["ipr"], found["rsd"] = gains(evaluated.per_client, context.alone) or (None, None)
    return found


def _cpd(histograms: Mapping[int, tuple[int, ...]], plan: Plan) -> float | None:
    if not histograms or len(plan.groups) < 2:
        return None
    known = [[histograms[client] for client in group if client in histograms] for group in plan.groups]
    return cpd_median(np.stack([np.array(rows, np.int64).sum(axis=0) for rows in known if rows]))


def _costs(context: RunContext, teams: Teams) -> CostModel:
    scheme, membership = context.scheme, context.membership
    busy = {client for group in teams.sampled for client in group} if scheme.sampling == "none" else None
    sizes = [hosted.train_samples for client, hosted in membership.clients.items() if busy is None or client in busy]
    return CostModel(
        clients=len(sizes),
        sampling_rate=context.config.sampling_rate if scheme.sampling != "none" else 1.0,
        local_epochs=context.config.local_epochs,
        samples_per_client=sum(sizes) / max(1, len(sizes)),
        model_bytes=context.model_bytes,
        flop_per_sample=membership.training_flop or CostModel().flop_per_sample,
        flop_per_aggregation=sum(math.prod(spec.shape) for spec in membership.tensors if spec.trainable),
    )
