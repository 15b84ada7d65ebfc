"""The figures of a run, by pure functions: the row of a round and its costs, and the summary after the last round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgsp.messages import Results
from fedgsp.programs import PROGRAMS
from fedgsp.scoring import ACCURACY, as_figure
from fedgsp.tensors.encoding import BFLOAT16, wire_bytes
from top_server.baseline.local_run import gains
from top_server.evaluation import Evaluation
from top_server.grouping import Plan
from top_server.grouping.cpd import cpd_median
from top_server.groups.moved import NOTHING, Moved
from top_server.groups.task import GroupOutcome
from top_server.record.events.base import ABSENT
from top_server.record.events.rounds import RoundFinished
from top_server.record.scores import scored_by, scores_of
from top_server.run import RunContext
from top_server.sizes import sampling_rate
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
    validated: Evaluation | None = None,
    moved_before: Moved = NOTHING,
) -> RoundFinished:
    """The row of round `number`.

    `evaluated` and `validated` are the evaluations on test and on validation data. `shared` says whether all clients
    have the same model; `histograms` are the class histograms that clients told. `moved_before` was moved in
    earlier tries of the round.
    """
    costs, groups = _costs(context, teams, outcomes), len(teams.plan.groups)
    chained, of_drawn = PROGRAMS[context.scheme.program].chained, context.scheme.sampling == "clients"
    moved = sum((outcome.moved for outcome in outcomes), moved_before)
    # Where all clients train, or models differ, the result is who trains with whom, and how well each is served.
    each = context.scheme.sampling == "none" or not shared
    return RoundFinished(
        round=number,
        groups=groups,
        sampled_groups=len(teams.sampled),
        clients_trained=sum(len(outcome.took_part) for outcome in outcomes),
        clients_skipped=sum(len(outcome.missed) for outcome in outcomes),
        seconds=round(seconds, 3),
        bytes_direct=moved.direct,
        bytes_relayed=moved.relayed,
        bytes_travelled=moved.travelled,
        cpd_median=_cpd(histograms, teams.plan),
        t_comp_s=costs.t_comp_s(groups, of_drawn) if chained else costs.t_comp_s(costs.clients),
        t_comm_s=costs.t_comm_s(),
        d_comm_bytes=costs.d_comm_bytes(),
        partition=teams.plan.groups if each else ABSENT,
        **(_served(evaluated, each) | _gains(context, evaluated) if evaluated is not None else {}),
        validation=_validated(validated, each) if validated is not None else ABSENT,
    )


def _served(evaluated: Evaluation, each: bool) -> dict[str, Any]:
    """Accuracy, loss, metrics and score over all clients; with `each`, of every client too."""
    found: dict[str, Any] = {**evaluated.overall, "clients_evaluated": len(evaluated.of)}
    by_accuracy = evaluated.scoring.score == ACCURACY
    if each and (by_accuracy or evaluated.per_client):
        found["accuracy_per_client"] = evaluated.per_client
    if not by_accuracy:
        found |= {
            "scored_by": evaluated.scoring.score,
            "score": evaluated.score,
            "score_per_client": evaluated.score_per_client,
        }
    if evaluated.metrics:
        found |= {"metrics": evaluated.combined, "metrics_per_client": evaluated.metrics}
    return found


def _validated(validated: Evaluation, each: bool) -> dict[str, Any]:
    """The same figures on validation data, with those of each client that rounds are compared by."""
    return {**_served(validated, each), "behind_score": validated.behind_score}


def _gains(context: RunContext, evaluated: Evaluation) -> dict[str, float | None]:
    if context.alone is None:
        return {}
    ipr, rsd = gains(evaluated.score_per_client, context.alone) or (None, None)
    return {"ipr": ipr, "rsd": None if rsd is None else as_figure(rsd)}


def _cpd(histograms: Mapping[int, tuple[int, ...]], plan: Plan) -> float | None:
    known = [[histograms[client] for client in group if client in histograms] for group in plan.groups]
    counts = [np.array(rows, np.int64).sum(axis=0) for rows in known if rows]
    return cpd_median(np.stack(counts)) if len(counts) > 1 else None


def _costs(context: RunContext, teams: Teams, outcomes: Sequence[GroupOutcome]) -> CostModel:
    scheme, membership = context.scheme, context.membership
    busy = {client for group in teams.sampled for client in group} if scheme.sampling == "none" else None
    sizes = [hosted.train_samples for client, hosted in membership.clients.items() if busy is None or client in busy]
    retained = [task.groups_of_one for task in (one.task for one in outcomes) if task.results is Results.RETAINED]
    return CostModel(
        clients=len(sizes),
        alone=len(membership.clients.keys() & set[int]().union(*retained)),
        sampling_rate=sampling_rate(context.config) if scheme.sampling != "none" else 1.0,
        local_epochs=context.config.local_epochs,
        samples_per_client=sum(sizes) / max(1, len(sizes)),
        model_bytes=wire_bytes(context.tensors, context.config.wire_dtype == BFLOAT16),
        flop_per_sample=membership.standard.training_flop or CostModel().flop_per_sample,
        flop_per_aggregation=sum(math.prod(spec.shape) for spec in membership.tensors if spec.trainable),
    )


@dataclass(frozen=True, slots=True)
class CostModel:
    """Modelled costs of a run (FedGSP, cost model); the default constants are those of the paper.

    T_comp(r) = N_calc / T_FLOPS * n * e * K / min(K, f(r)) + N_aggr / T_FLOPS * (kappa * f(r) - 1)   seconds
    T_comm(r) = 8 * (kappa * K - A) * size * (1 / R_in + 1 / R_out)                                   seconds
    D_comm(r) = 2 * (kappa * K - A) * size                                                            bytes

    FedAvg is f(r) = K. A clients train alone and keep their models (HCCT, FedCollab). Traffic between managers and the
    top server is left out: in the paper they share a machine.
    """

    clients: int = 368
    #: A.
    alone: int = 0
    sampling_rate: float = 0.3
    local_epochs: int = 1
    samples_per_client: float = 226.0
    model_bytes: float = 25.2e6
    #: N_calc, to train on one sample.
    flop_per_sample: float = 96e6
    #: N_aggr, to add one model to another.
    flop_per_aggregation: float = 6.3e6
    flop_per_second: float = 567e9
    #: R_in and R_out of a client, bits per second.
    download_rate: float = 567e6
    upload_rate: float = 567e6

    def t_comp_s(self, groups: int, of_drawn: bool = False) -> float:
        """Seconds of computing in a round of f(r) = `groups`: the chain of one group, then the aggregation.

        `of_drawn`: clients were drawn, and not groups, so that all groups are of these clients, and train.
        """
        share = self.sampling_rate if of_drawn else 1.0
        clients, trains = share * self.clients, self.sampling_rate / share
        samples = self.samples_per_client * self.local_epochs * clients / max(1, min(clients, groups))
        # A share of a group, kappa * f(r) < 1, still means one group, and one group needs no aggregation.
        additions = max(0.0, trains * groups - 1)
        return (self.flop_per_sample * samples + self.flop_per_aggregation * additions) / self.flop_per_second

    def t_comm_s(self) -> float:
        """Seconds of transfer in a round: every sampled client with a group downloads and uploads one model."""
        bits = 8 * self._with_others * self.model_bytes
        return bits * (1 / self.download_rate + 1 / self.upload_rate)

    def d_comm_bytes(self) -> float:
        """Bytes to and from these clients in a round."""
        return 2 * self._with_others * self.model_bytes

    @property
    def _with_others(self) -> float:
        return max(0.0, self.sampling_rate * self.clients - self.alone)


def spread(values: Iterable[float]) -> dict[str, float]:
    """Mean, standard deviation (of the population), minimum and maximum of one figure over the clients."""
    array = np.array(list(values))
    return {
        "mean": float(array.mean()),
        "std": float(array.std()),
        "min": float(array.min()),
        "max": float(array.max()),
    }


def summarise(rows: Iterable[Mapping[str, Any]], names: Mapping[int, str] | None = None) -> dict[str, Any] | None:
    """Score and metrics of each client and their spread, after the last evaluated round; the score also at best.

    Returns None if no row has figures of clients. "Best" is each client's own best round, as HCCT's authors report
    it. This figure is too optimistic, because the test part chooses the round. `names` are what people call clients.
    One row is kept at a time: it may have megabytes.
    """
    end: Mapping[str, Any] | None = None
    number, best = None, dict[int, float]()
    for row in rows:
        number, scores = row.get("round"), scores_of(row)
        for client, score in scores.items():
            best[client] = max(best.get(client, -math.inf), score)
        if scores or row.get("metrics_per_client"):
            end = row
    if end is None:
        return None
    found: dict[str, Any] = {"rounds": number}
    if (rated_by := scored_by(end)) != ACCURACY:
        found["scored_by"] = rated_by
    if names:
        found["names"] = dict(names)
    found |= {"last": {}, "best": {}}
    for name, per_client in {"last": scores_of(end), "best": best}.items():
        if not per_client:
            continue
        found[name] = {**spread(per_client.values()), "per_client": dict(sorted(per_client.items()))}
    if best:
        found["best"]["chosen_by"] = f"test {rated_by}"
    found["last"]["round"] = end.get("round")
    found["last"].update({name: end[name] for name in ("ipr", "rsd") if end.get(name) is not None})
    if end.get("metrics_per_client"):
        found["last"]["metrics"] = {
            name: _metric(end.get("metrics", {}).get(name), per_client)
            for name, per_client in end["metrics_per_client"].items()
        }
    return found


def _metric(over_all: float | None, per_client: Mapping[str, float | None]) -> dict[str, Any]:
    """One metric over all clients, its spread over the clients that have a number, and its value for each client."""
    known = [value for value in per_client.values() if value is not None]
    clients = dict(sorted((int(client), value) for client, value in per_client.items()))
    return {"all": over_all, **(spread(known) if known else {}), "per_client": clients}
