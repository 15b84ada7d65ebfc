"""Several nodes in one process: what one of them draws is not disturbed by another that seeds the generators."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from fedgsp import ClientData, Split, Task
from fedgsp_node.devices import CPU
from fedgsp_node.hosted_data import HostedData
from fedgsp_node.model.making import model_of
from fedgsp_node.rehearsal import rehearse
from fedgsp_node.seeding import random_kept, seed_generators, seeded_for_data, seeded_for_task
from tests.support.local_work import mlp

#: Long enough for the other thread to seed, if nothing keeps it from that.
MEANWHILE_S = 0.1


class Nothing(Task):
    """Data of zeros."""

    num_classes, num_clients = 4, 1

    def model(self) -> nn.Module:
        return mlp()

    def data(self, client: int) -> ClientData:
        part = Split(np.zeros((2, 10), np.float32), np.zeros(2, np.int64))
        return ClientData(part, part)


class Interrupted(Nothing):
    """While it draws, another node of the process is at work."""

    def __init__(self, other: Callable[[], object]) -> None:
        self._other = other

    def model(self) -> nn.Module:
        self.drawn = draw_around(self._other)
        return mlp()

    def data(self, client: int) -> ClientData:
        self.drawn = draw_around(self._other)
        return super().data(client)


def draw() -> tuple[float, ...]:
    return float(torch.rand(1)), float(np.random.random()), random.random()


def draw_around(other: Callable[[], object]) -> list[tuple[float, ...]]:
    """Draws before and after another thread had the time to do its work."""
    first = draw()
    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    thread.join(MEANWHILE_S)
    return [first, draw()]


MODULE = mlp()


def kept() -> None:
    with random_kept(CPU):
        draw()


def made() -> None:
    with seeded_for_task():
        draw()


OTHERS: dict[str, Callable[[], object]] = {
    "makes a model": lambda: model_of(Nothing(), 7),
    "makes the data of a client": lambda: HostedData(Nothing(), [0]),
    "makes its task": made,
    "tries its task": lambda: rehearse(MODULE, Nothing(), Nothing().data(0)),
    "begins a training": lambda: seed_generators(3, "training", 1, 0),
    "keeps a model frozen": kept,
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_a_model_draws_is_its_own(other: Callable[[], object]) -> None:
    quiet, loud = Interrupted(lambda: None), Interrupted(other)
    model_of(quiet, 5)
    model_of(loud, 5)
    assert loud.drawn == quiet.drawn


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_so_is_what_the_data_of_a_client_draw(other: Callable[[], object]) -> None:
    quiet, loud = Interrupted(lambda: None), Interrupted(other)
    HostedData(quiet, [0])
    HostedData(loud, [0])
    assert loud.drawn == quiet.drawn


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_and_what_a_task_draws_as_it_is_made(other: Callable[[], object]) -> None:
    with seeded_for_task():
        quiet = draw_around(lambda: None)
    with seeded_for_task():
        assert draw_around(other) == quiet


def test_the_thread_itself_may_seed_again() -> None:
    # The constructor of a task may make a model, or load the data of a client.
    with seeded_for_task(), seeded_for_data(0):
        first = draw()
        model_of(Nothing(), 1)
    with seeded_for_data(0):
        assert draw() == first
