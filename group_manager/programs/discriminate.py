"""Discriminate: members train networks that distinguish their samples; the result is the distances of their data."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Sequence

import numpy as np

from fedgsp.discriminators import ESTIMATES, MOST_BYTES
from fedgsp.messages import (
    Discriminate,
    Discriminated,
    Discrimination,
    DiscriminatorSettings,
    Failure,
    FailureCode,
    GroupResult,
    Member,
    ModelRef,
    NetworksLeft,
    Start,
    TensorSpec,
)
from fedgsp.tensors.weights import Weights
from group_manager.discrimination import Networks, networks
from group_manager.distance_estimate import distances
from group_manager.group import Group
from group_manager.programs.ahead import Ahead


async def run(group: Group) -> GroupResult | Failure:
    """Exchanges networks until none improves, in each fold.

    The result is a model of `clients` (N,), and of `distances` and their standard `errors`, both (N, N).
    """
    plan = group.request.discrimination
    if plan is None or plan.settings is None or not plan.judge_every or not plan.patience:
        return Failure(FailureCode.BAD_ORDER, "discriminators need settings, judgements and patience")
    if plan.estimate not in ESTIMATES:
        return Failure(FailureCode.BAD_ORDER, f"unknown estimate {plan.estimate!r}; known: {', '.join(ESTIMATES)}")
    members = {member.client: member for member in group.request.members}
    if group.request.attempt:
        await group.orders.recall(f"{_home(group)}/", ())  # models of another manager
    folds = [networks(list(members), plan) for _ in range(ESTIMATES[plan.estimate].folds)]
    failed: set[int] = set()
    made = 0
    for fold, found in enumerate(folds):
        found.advance({}, {}, failed)
        settings = dataclasses.replace(plan.settings, fold=fold)
        exchange = 0
        while found.left and exchange <= plan.exchanges:
            # Networks that were averaged in one exchange are judged in the next. The last ones are judged, too.
            judges = exchange > 0 and ((exchange - 1) % plan.judge_every == 0 or exchange == plan.exchanges)
            trains = exchange < plan.exchanges
            if judges or trains:
                failed |= await _Exchange(group, found, settings, made + exchange, exchange, judges, trains).carry_out(
                    members
                )
            if judges:
                left = found.left + sum(later.left for later in folds[fold + 1 :])
                group.reports.tell(NetworksLeft(made + exchange, left, len(folds) * len(found.pairs)))
            exchange += 1
        made += exchange
    return group.result(_keep_result(group, folds, plan))


class _Exchange:
    """One exchange: an order to every client that still has a network to train."""

    def __init__(
        self,
        group: Group,
        found: Networks,
        settings: DiscriminatorSettings,
        number: int,
        in_fold: int,
        judges: bool,
        trains: bool,
    ) -> None:
        self._group = group
        self._found = found
        self._settings = settings
        self._number, self._in_fold = number, in_fold
        self._judges = judges
        self._trains = trains
        # With the serial: a node that was away may still have networks of an earlier call in the round.
        self._prefix = f"{_home(group)}/{group.request.serial}/{number}"

    async def carry_out(self, members: dict[int, Member]) -> set[int]:
        """Plays the exchange. Members that fail are skipped, and returned."""
        group, made = self._group, set[str]()
        asked = {}
        for position, member in enumerate(members.values()):
            others = self._found.others(member.client)
            if others:
                work = self._order(member, others)
                if work.start is not None:
                    made.add(work.start.model_id)
                key = group.orders.key("discriminate", position, self._number)
                asked[member.client] = (work, group.orders.submit(member, key, work))
        judged: dict[int, Discriminated] = {}
        trained: dict[int, Weights] = {}
        failed: set[int] = set()
        with contextlib.closing(Ahead(group)) as ahead:
            for client, (work, pending) in asked.items():
                if work.produces:
                    ahead.expect(members[client], work.produces, pending)
            for client, (work, pending) in asked.items():
                outcome = await group.orders.outcome(pending, in_turn=False)
                if not isinstance(outcome, Discriminated):
                    group.orders.cancel(pending)
                failure = await self._take(client, work, outcome, judged, trained)
                ahead.over(work.produces)
                if failure is not None:
                    failed.add(client)
                    group.models.release([work.produces])  # it may have come although it cannot be used
                    group.reports.skipped(members[client], failure)
        for client in self._found.strangers(trained):
            failed.add(client)
            del trained[client]
            judged.pop(client, None)
            detail = "its samples have other features or labels than the other clients'"
            group.reports.skipped(members[client], Failure(FailureCode.WRONG_SHAPES, detail))
        group.models.release(made)
        await asyncio.to_thread(self._found.advance, judged, trained, failed)
        return failed

    def _order(self, member: Member, others: tuple[int, ...]) -> Discriminate:
        weights, start = self._found.start(member.client), None
        if weights is not None:
            start_id = f"{self._prefix}/start" + ("" if self._found.shared else f"/{member.client}")
            self._group.models.keep(start_id, weights)
            start = Start(start_id, (self._group.manager,), keep=self._found.shared)
            if start.keep:
                self._group.ledger.keep(start_id, member.node)
        produces = f"{self._prefix}/{member.client}" if self._trains else ""
        return Discriminate(start, produces, others, self._settings, self._judges, self._in_fold)

    async def _take(
        self,
        client: int,
        work: Discriminate,
        outcome: object,
        judged: dict[int, Discriminated],
        trained: dict[int, Weights],
    ) -> Failure | None:
        """Takes in one client's answer; returns why it cannot be used, or None."""
        if not isinstance(outcome, Discriminated):
            return outcome if isinstance(outcome, Failure) else Failure(FailureCode.BAD_ORDER, "an empty answer")
        self._group.reports.count(outcome)
        if self._judges and len(outcome.correct) != len(work.others):
            return Failure(FailureCode.BAD_ORDER, f"{len(outcome.correct)} counts for {len(work.others)} networks")
        if self._judges and max(outcome.correct) > outcome.samples:
            return Failure(FailureCode.BAD_ORDER, f"{max(outcome.correct)} right answers on {outcome.samples} samples")
        if self._trains:
            weights = await self._group.models.collect(work.produces)
            self._group.models.release([work.produces])
            if isinstance(weights, Failure):
                return weights
            held = weights.buffer.nbytes * len(self._group.request.members)
            if held > MOST_BYTES and not self._found.shared:
                detail = f"the pairs of all clients are {held / 1e9:.0f} GB here: use distance=shared"
                return Failure(FailureCode.TOO_LONG, detail)
            if not self._found.fits(client, weights):
                return Failure(FailureCode.WRONG_SHAPES, f"it did not send {len(work.others)} discriminators")
            trained[client] = weights
        if self._judges:
            judged[client] = outcome
        return None


def _home(group: Group) -> str:
    """The prefix of the ids of all networks of this round."""
    request = group.request
    return f"{request.run_id}/{request.round}/{request.group}/discriminators"


def _keep_result(group: Group, folds: Sequence[Networks], plan: Discrimination) -> ModelRef:
    assert plan.settings is not None
    found, errors = distances(folds, plan.settings.samples, plan.estimate)
    arrays = {"clients": np.array(folds[0].clients, np.int64), "distances": found, "errors": errors}
    specs = tuple(TensorSpec(name, str(array.dtype), array.shape, False) for name, array in arrays.items())
    return group.models.keep(f"{_home(group)}/{group.request.serial}/distances", Weights.of(arrays, specs))
