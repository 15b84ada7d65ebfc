"""Evaluates a model of a run on the data of a site's own clients."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedgsp.errors import ConfigError, TaskError
from fedgsp.messages import Additions, Evaluated
from fedgsp.scoring import LOSS, Figure, Scoring, accuracy_of, loss_of
from fedgsp.task import Task
from fedgsp.tensors.weights import Weights
from fedgsp.words import counted
from fedgsp_node.clients import Clients
from fedgsp_node.finished.record import RunRecord
from fedgsp_node.finished.tensors import Tell, check_constants, tensors_of
from fedgsp_node.hosted_data import TEST, VALIDATION
from fedgsp_node.kept.personal_state import PersonalState
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.control import Control


@dataclass(frozen=True, slots=True)
class Score:
    """What a model reached on the data of one client, or of several together."""

    #: The name of the model's file, and the round that made it; empty and 0 for several clients.
    model: str
    round: int
    #: The part of the data: "test" or "validation".
    part: str
    samples: int
    #: The mean over the clients whose loss is finite; None if there is none.
    loss: float | None
    #: None if the task has no accuracy.
    accuracy: float | None
    metrics: Mapping[str, float | None]

    def as_json(self) -> dict[str, Any]:
        """The figures as JSON takes them, with null for what is no number."""
        found: dict[str, Any] = {
            "part": self.part,
            "samples": self.samples,
            "accuracy": self.accuracy,
            "loss": self.loss,
        }
        if self.model:
            found = {"model": self.model, "round": self.round, **found}
        return {**found, "metrics": {name: _finite(value) for name, value in self.metrics.items()}}

    def __str__(self) -> str:
        figures = {"accuracy": self.accuracy, "loss": self.loss, **self.metrics}
        told = [f"{name} {value:.4f}" for name, value in figures.items() if value is not None]
        source = f", {self.model} of round {self.round}" if self.model else ""
        return f"{', '.join(told) or 'no figures'} ({self.samples} {self.part} samples{source})"


def evaluate(
    run: RunRecord,
    task: Task,
    ids: Iterable[int] | None,
    model: str,
    *,
    part: str = TEST,
    personal: PersonalState,
    device: torch.device,
    tell: Tell,
) -> tuple[dict[int, Score], Score]:
    """The score of each client with its model, and of all together. Without ids: all clients of the task.

    `part` is "test" or "validation".

    Raises UserError.
    """
    clients = Clients(task, ids, personal, device)
    check_constants(run, clients.make_constants(run.constants_seed), tell)
    if run.training.adds is not None:
        clients.extend(Additions(run.training.name, run.config.training_option))
    scoring = Scoring(combine=task.combine)
    scores: dict[int, Score] = {}
    answers: list[Evaluated] = []
    told: set[str] = set()

    def once(text: str) -> None:
        if text not in told:
            told.add(text)
            tell(text)

    if part == VALIDATION:
        clients_with = [hosted for hosted in clients.hosted if hosted.validation_samples]
        for hosted in clients.hosted:
            if hosted not in clients_with and ids is not None:
                raise ConfigError(f"client {hosted.client} has no validation part", "leave it out of --clients")
        if not clients_with:
            raise ConfigError("no client has a validation part", "leave out --part")
        if len(clients_with) < len(clients.hosted):
            tell(f"{len(clients_with)} of {counted(len(clients.hosted), 'client')} have a validation part")
    else:
        clients_with = list(clients.hosted)
    for hosted in clients_with:
        file = run.model(model, hosted.client)
        arrays = tensors_of(run, file, clients.tensors, hosted.client, personal, once, "--clients")
        try:
            found = clients.evaluate(hosted.client, Weights.of(arrays, clients.tensors), Control(), part=part)
        except OrderError as error:
            raise TaskError(f"client {hosted.client}: {error.failure}", "correct the task, or its data") from error
        answers.append(found)
        scores[hosted.client] = _score(scoring, part, [found], file.name, file.round)
        for name in _left_out(found):
            tell(f"{name} of client {hosted.client} is no finite number, and does not count for all together")
    return scores, _score(scoring, part, answers)


def _score(scoring: Scoring, part: str, answers: list[Evaluated], model: str = "", made_in: int = 0) -> Score:
    samples = sum(one.samples for one in answers)
    names = dict.fromkeys(name for one in answers for name in one.metrics)
    figures = {
        name: [
            Figure(one.metrics[name], one.denominators.get(name, 1.0), one.samples)
            for one in answers
            if name in one.metrics
        ]
        for name in names
    }
    return Score(
        model,
        made_in,
        part,
        samples,
        loss_of(answers),
        accuracy_of(answers),
        {name: scoring.combined(name, several) for name, several in figures.items()},
    )


def _left_out(answer: Evaluated) -> list[str]:
    """The figures of an answer that are no finite numbers."""
    loss = [] if math.isfinite(answer.loss_sum) else [LOSS]
    return loss + [
        name
        for name, value in answer.metrics.items()
        if not Figure(value, answer.denominators.get(name, 1.0), answer.samples).is_finite
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
