"""The global model compared with models that clients train alone before the first round (MaxFL, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgsp.messages import Evaluated, Results
from top_server.evidence import Evidence
from top_server.groups.task import GroupTask
from top_server.merging import Merging
from top_server.merging.base import Starts
from top_server.models import INITIAL, Held
from top_server.profiles.base import Profile
from top_server.profiles.options import PriorOptions
from top_server.progress import Progress
from top_server.run import RunContext


class Priors(Profile[PriorOptions]):
    """Every client trains its prior model alone, once; the model stays on its node until the run is over."""

    def __init__(self, context: RunContext, progress: Progress, merging: Merging, options: PriorOptions) -> None:
        super().__init__(context, progress, merging, options)
        self.priors: dict[int, Held] = {}
        self._initial: Held | None = None
        #: Client -> the round in which it trained its prior model.
        self._made_in: dict[int, int] = {}

    def save(self) -> dict[str, Any]:
        """The prior models and the rounds in which they were trained."""
        priors = {client: held.to_json() for client, held in self.priors.items()}
        return {"priors": priors, "made_in": self._made_in}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The same."""
        self.priors = {int(client): Held.from_json(held) for client, held in saved["priors"].items()}
        self._made_in = {int(client): number for client, number in saved["made_in"].items()}
        if INITIAL in self.context.models:
            self._initial = self.context.models[INITIAL]

    async def train_priors(self, round_number: int) -> tuple[int, ...]:
        """Lets clients train prior models that have none; returns the clients that have one then."""
        context = self.context
        if self._initial is None:
            # Kept for clients that join later, when the global model has changed.
            weights = context.models.weights(self.start(tuple(context.membership.clients))[0][0])
            self._initial = context.models.put([INITIAL], context.initial_id(INITIAL), weights)
        missing = tuple(client for client in context.membership.clients if client not in self.priors)
        if missing:
            epochs = self.options.prior_epochs or context.config.rounds * context.config.local_epochs
            start = ((self._initial, 1.0),)
            by_round: dict[int, list[int]] = {}
            for client in missing:  # a lost model is made again as it was
                by_round.setdefault(self._made_in.setdefault(client, round_number), []).append(client)
            for made_in, clients in by_round.items():
                members = tuple(clients)
                task = GroupTask(0, "alone", members, start, results=Results.KEPT, local_epochs=epochs, training="sgd")
                outcome = await self.ask(made_in, task)
                self.priors.update(outcome.own_models)
        return tuple(client for client in context.membership.clients if client in self.priors)


class PriorLosses(Priors):
    """Training losses of the global model and of the client's own prior model (MaxFL proper)."""

    def __init__(self, context: RunContext, progress: Progress, merging: Merging, options: PriorOptions) -> None:
        super().__init__(context, progress, merging, options)
        self._losses: dict[int, float] = {}

    def save(self) -> dict[str, Any]:
        """The prior models, the rounds in which they were trained, and their losses."""
        return {**super().save(), "losses": self._losses}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The same."""
        super().restore(saved)
        self._losses = {int(client): loss for client, loss in saved["losses"].items()}

    async def gather(self, round_number: int) -> Evidence:
        """Columns `train_loss` and `prior_loss`, with NaN for clients without a prior model or without an answer."""
        clients = await self.train_priors(round_number)
        unknown = {client: self.priors[client] for client in clients if client not in self._losses}
        if unknown:
            answers = await self.evaluate(round_number, "evaluate-training", unknown, (), unknown)
            for client in set(unknown) - set(answers):
                self.priors.pop(client)  # if it was lost with its node, the client trains another one
            self._losses.update({c: answer.loss_sum / answer.samples for c, answer in answers.items()})
        start = self.start(clients)
        answers = await self.evaluate(round_number, "evaluate-training", clients, start)
        losses = {c: answer.loss_sum / answer.samples for c, answer in answers.items() if c in self._losses}
        prior = {client: self._losses[client] for client in losses}
        return _columns(self.context, train_loss=losses, prior_loss=prior)


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
        lost = set(clients) - set(answers)
        if lost:  # perhaps with their nodes: these clients train another one
            for client in lost:
                self.priors.pop(client)
            again = tuple(client for client in await self.train_priors(round_number) if client in lost)
            answers.update(await self._compare(round_number, again, start) if again else {})
            for client in set(again) - set(answers):
                self.priors.pop(client)
        losses = {client: answer.loss_sum / answer.samples for client, answer in answers.items()}
        distances = {client: answer.squared_distance for client, answer in answers.items()}
        return _columns(self.context, train_loss=losses, prior_distance=distances)

    async def _compare(self, round_number: int, clients: tuple[int, ...], start: Starts) -> dict[int, Evaluated]:
        own = {client: self.priors[client] for client in clients}
        return await self.evaluate(round_number, "compare", clients, start, own)


def _columns(context: RunContext, **figures: Mapping[int, float]) -> Evidence:
    """Evidence with a column (N, 1) for each of `figures`; without clients if no client answered."""
    clients = tuple(context.membership.clients) if any(figures.values()) else ()
    columns = {
        name: np.array([known.get(client, np.nan) for client in clients]).reshape(-1, 1)
        for name, known in figures.items()
    }
    return Evidence(clients, figures=columns)
