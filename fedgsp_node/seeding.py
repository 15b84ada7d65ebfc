"""Seeds of the generators that a task's code may draw from."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

from fedgsp.seeds import derive

#: Seed of what a task draws while it is made, or makes the data of a client. They must be equal on all nodes.
_OF_TASKS = 0


def seed_generators(seed: int, purpose: str, *keys: int) -> None:
    """Seeds all generators for one purpose, such as "training" in a round.

    Then a data set whose samples are drawn at random gives the same ones whatever the node did before.
    """
    seed_all(derive(seed, purpose, *keys))


def seed_for_data(client: int) -> None:
    """Seeds all generators for a task that makes the data of a client: the same each time, and on every node."""
    seed_generators(_OF_TASKS, "data", client)


@contextlib.contextmanager
def seeded_for_task() -> Iterator[None]:
    """Inside the context, generators are seeded for a task that is made: it may deal the samples to the clients.

    Afterwards they are what they were before, for a notebook that makes its task to try it.
    """
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed_generators(_OF_TASKS, "task")
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def seed_all(value: int) -> None:
    """Seeds the global generators of torch, numpy and Python."""
    # Without a device to seed, `torch.manual_seed` takes 200 times as long: it notes who called it, for a later error.
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(value)
    np.random.seed(value % 2**32)
    random.seed(value)
