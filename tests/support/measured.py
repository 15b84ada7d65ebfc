"""Distances between the clients of a run, measured by a script in place of managers and nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from fedgsp.messages import Failure, FailureCode, MemberSkipped, TensorSpec
from fedgsp.tensors.weights import Weights
from tests.support.surveyed import Surveys, surveyed
from top_server.evidence import Evidence
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.profiles.distances import Distances

#: The standard error of every distance that is found.
ERROR = 0.125


def found(clients: tuple[int, ...], matrix: np.ndarray) -> Weights:
    errors = np.full(matrix.shape, ERROR)
    arrays = {"clients": np.array(clients, np.int64), "distances": matrix, "errors": errors}
    specs = tuple(TensorSpec(name, str(array.dtype), array.shape, False) for name, array in arrays.items())
    return Weights.of(arrays, specs)


def truth(one: int, other: int) -> float:
    """What is found of two clients, unless a test says otherwise."""
    return 0.0 if one == other else (10 * min(one, other) + max(one, other)) / 1000


def matrix(clients: tuple[int, ...], rule: Callable[[int, int], float] = truth) -> np.ndarray:
    return np.array([[rule(one, other) for other in clients] for one in clients])


def lacking(clients: tuple[int, ...], *unknown: int) -> np.ndarray:
    """The matrix of clients of whom some could not be compared."""
    return matrix(clients, lambda a, b: np.nan if a != b and {a, b}.intersection(unknown) else truth(a, b))


def same(evidence: Evidence, expected: np.ndarray) -> bool:
    return np.array_equal(evidence.matrices["distances"], expected, equal_nan=True)


def failing(
    surveys: Surveys, *clients: int, reason: str = "no labels", code: FailureCode = FailureCode.TASK_RAISED
) -> None:
    """From now on these clients fail; a manager tells 1 of them, as of all that it does not know."""

    def answer(task: GroupTask) -> GroupOutcome:
        lost = [client for client in task.clients if client in clients]
        told = matrix(task.clients, lambda a, b: 1.0 if a != b and {a, b}.intersection(lost) else truth(a, b))
        skipped = tuple(MemberSkipped(c, Failure(code, f"{reason} {c}")) for c in lost)
        return surveys.outcome(task, result=surveys.made(found(task.clients, told)), skipped=skipped)

    surveys.answers["discriminate"] = answer


@asynccontextmanager
async def measuring(
    monkeypatch: pytest.MonkeyPatch,
    directory: Path,
    clients: int = 4,
    rule: Callable[[int, int], float] = truth,
    **options: str,
) -> AsyncIterator[tuple[Surveys, Distances]]:
    """Clients 0, 1, ... have 10, 11, ... samples."""
    async with surveyed(monkeypatch, clients, profile=options, run_dir=directory, seed=5) as surveys:

        def answer(task: GroupTask) -> GroupOutcome:
            assert task.discrimination is not None
            new = set(task.discrimination.newcomers)

            def told(one: int, other: int) -> float:
                """Of a pair that has no network a manager knows nothing."""
                return rule(one, other) if one == other or not new or {one, other} & new else 1.0

            return surveys.outcome(task, result=surveys.made(found(task.clients, matrix(task.clients, told))))

        surveys.answers["discriminate"] = answer
        yield surveys, surveys.stage.profile("distances")
