"""Profiles with a model that every client trains alone before the first round (MaxFL, sec. 4; k-means, sec. 6)."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgsp.messages import Evaluated, Results
from fedgsp.tensors.updates import trainable
from fedgsp.tensors.weights import Weights
from top_server.evidence import Evidence
from top_server.groups.task import GroupTask
from top_server.merging.base import Starts
from top_server.models import INITIAL, Held
from top_server.profiles.base import Profile
from top_server.profiles.options import PriorOptions
from top_server.remembered import remembered
from top_server.reveals.spool import UpdateSpool
from top_server.run import RunContext


@dataclass(eq=False)
class Priors(Profile[PriorOptions]):
    """Every client trains its prior model alone; the model stays on its node until the run is over.

    A client trains once, and again if its number of training samples is another one: then its data have changed.
    """

    priors: dict[int, Held] = remembered(Held.from_json, Held.to_json)
    #: Client -> the round in which it trained its prior model.
    _made_in: dict[int, int] = remembered()
    #: Client -> training samples when it trained its prior model.
    _samples: dict[int, int] = remembered()

    async def train_priors(self, round_number: int) -> tuple[int, ...]:
        """Lets clients train prior models that have none; returns the clients that have one then."""
        context = self.context
        if INITIAL not in context.models:
            # Kept for clients that join later, when the global model has changed.
            weights = context.models.weights(self.start(tuple(context.membership.clients))[0][0])
            context.models.put([INITIAL], context.initial_id(INITIAL), weights)
        for client, member in context.membership.clients.items():
            if self._samples.setdefault(client, member.train_samples) != member.train_samples:
                self.discard(client)
                self._samples[client] = member.train_samples
        missing = tuple(client for client in context.membership.clients if client not in self.priors)
        if missing:
            by_round: dict[int, list[int]] = {}
            for client in missing:  # a lost model is made again as it was
                by_round.setdefault(self._made_in.setdefault(client, round_number), []).append(client)
            for made_in, clients in by_round.items():
                task = GroupTask(
                    0,
                    "alone",
                    tuple(clients),
                    ((context.models[INITIAL], 1.0),),
                    results=Results.KEPT,
                    local_epochs=self.options.epochs(context.config),
                    training="sgd",
                )
                self.priors.update((await self.ask(made_in, task)).own_models)
        return tuple(client for client in context.membership.clients if client in self.priors)

    def forget(self, clients: Iterable[int]) -> None:
        """Forgets prior models of which clients told nothing although they were asked: they train other ones."""
        for client in clients:
            self.priors.pop(client)

    def discard(self, client: int) -> None:
        """Discards all that was learned from data that the client no longer has."""
        self.priors.pop(client, None)
        self._made_in.pop(client, None)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The same; states of older versions do not have the numbers of samples."""
        super().restore({"samples": {}, **saved})


@dataclass(eq=False)
class PriorLosses(Priors):
    """Training losses of the global model and of the client's own prior model (MaxFL proper)."""

    #: Client -> the training loss of its prior model.
    _losses: dict[int, float] = remembered()

    async def gather(self, round_number: int) -> Evidence:
        """Columns `train_loss` and `prior_loss`, with NaN for clients without a prior model or without an answer."""
        clients = await self.train_priors(round_number)
        unknown = {client: self.priors[client] for client in clients if client not in self._losses}
        if unknown:
            known = await self.answers(round_number, "evaluate-training", unknown, (), unknown)
            self.forget(known.refused)
            self._losses.update({c: answer.loss_sum / answer.samples for c, answer in known.given.items()})
        answers = await self.evaluate(round_number, "evaluate-training", clients, self.start(clients))
        losses = {c: answer.loss_sum / answer.samples for c, answer in answers.items() if c in self._losses}
        return _columns(
            self.context, train_loss=losses, prior_loss={client: self._losses[client] for client in losses}
        )

    def discard(self, client: int) -> None:
        """The same, and the loss of its prior model."""
        super().discard(client)
        self._losses.pop(client, None)


class PriorDistances(Priors):
    """Training loss of the mean of all clients' models, and its distance from the prior model (HCCT's MAXFL)."""

    async def gather(self, round_number: int) -> Evidence:
        """Columns `train_loss` and `prior_distance`, with NaN for clients without a prior model or without an answer.

        In round 1, when all models are equal, there are none.
        """
        clients = await self.train_priors(round_number)
        if round_number == 1:
            return Evidence(tuple(self.context.membership.clients) if clients else ())
        start = self.start(clients)
        answers = await self._compare(round_number, clients, start)
        missing = set(clients) - set(answers)
        if missing:  # lost models are made again; a node that was lost may be back with its model
            again = tuple(client for client in await self.train_priors(round_number) if client in missing)
            answers.update(await self._compare(round_number, again, start) if again else {})
        return _columns(
            self.context,
            train_loss={client: answer.loss_sum / answer.samples for client, answer in answers.items()},
            prior_distance={client: answer.squared_distance for client, answer in answers.items()},
        )

    async def _compare(self, round_number: int, clients: tuple[int, ...], start: Starts) -> dict[int, Evaluated]:
        """Answers by client; prior models that are lost are forgotten."""
        priors = {client: self.priors[client] for client in clients}
        answers = await self.answers(round_number, "compare", clients, start, priors)
        self.forget(answers.refused)
        return dict(answers.given)


@dataclass(eq=False)
class PriorModels(Priors):
    """Keeps the model that each client trained alone, for one-shot k-means.

    The model comes here once, and stays until the run is over.
    """

    def __post_init__(self) -> None:
        assert self.context.config.run_dir is not None
        self._gram: Evidence | None = None
        self._spool = UpdateSpool(self.context.config.run_dir)

    def write(self, folder: Path) -> None:
        """Writes the prior models."""
        self._spool.save(folder)

    def load(self, folder: Path) -> None:
        """The same."""
        self._spool.load(folder)

    async def gather(self, round_number: int) -> Evidence:
        """Matrix `gram` (N, N): inner products of the clients' trainable weights; rows of NaN where these are lost."""
        clients = await self.train_priors(round_number)
        unknown = {client: self.priors[client] for client in clients if client not in self._spool.clients}
        if unknown:
            task = GroupTask(0, "collect", tuple(unknown), own_starts=unknown, results=Results.COLLECTED)
            outcome = await self.ask(round_number, task)
            for client, weights in outcome.models.items():
                if isinstance(weights, Weights):
                    arrays = [weights.arrays[spec.name].reshape(-1) for spec in trainable(weights.tensors)]
                    parts = [array.astype(np.float32) for array in arrays]  # their dtypes may differ
                    await asyncio.to_thread(self._spool.put, client, np.concatenate(parts))
            self.forget(set(unknown) - set(self._spool.clients) - outcome.out_of_reach)
        if unknown or self._gram is None or self._gram.clients != clients:
            self._gram = Evidence(clients, pairwise={"gram": await asyncio.to_thread(self._spool.gram, clients)})
        return self._gram

    def discard(self, client: int) -> None:
        """The same, and the copy of its prior model."""
        super().discard(client)
        self._spool.forget(client)

    def close(self) -> None:
        """Gives back the spool's memory and disk."""
        self._spool.close()


def _columns(context: RunContext, **figures: Mapping[int, float]) -> Evidence:
    """Evidence with a column (N, 1) for each of `figures`; without clients if no client answered."""
    clients = tuple(context.membership.clients) if any(figures.values()) else ()
    columns = {
        name: np.array([known.get(client, np.nan) for client in clients]).reshape(-1, 1)
        for name, known in figures.items()
    }
    return Evidence(clients, figures=columns)
