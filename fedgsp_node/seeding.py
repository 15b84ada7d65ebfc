"""Seeds of the generators that a task's code may draw from."""

import contextlib
import random
import threading
from collections.abc import Iterator

import numpy as np
import torch

from fedgsp.seeds import derive

#: Seed of what a task draws while it is made, or makes the data of a client. They must be equal on all nodes.
_OF_TASKS = 0
#: The generators belong to the process, and several nodes may live in one, for example in a test: each has a thread
#: of its own. A thread that draws what must be equal on all nodes holds this lock; other threads wait to seed.
_DRAWING = threading.RLock()


def seed_generators(seed: int, purpose: str, *keys: int) -> None:
    """Seeds all generators for one purpose, such as "training" in a round.

    Then a data set whose samples are drawn at random gives the same ones whatever the node did before.
    """
    seed_all(derive(seed, purpose, *keys))


def seeded_for_data(client: int) -> contextlib.AbstractContextManager[None]:
    """Inside the context, a task makes the data of a client: the generators begin with the same seed on every node."""
    return seeded(derive(_OF_TASKS, "data", client))


@contextlib.contextmanager
def seeded_for_task() -> Iterator[None]:
    """Inside the context, generators are seeded for a task that is made: it may deal the samples to the clients.

    Afterwards they are what they were before, for a notebook that makes its task to try it.
    """
    with _DRAWING:
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
        seed_generators(_OF_TASKS, "task")
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.set_rng_state(before[2])


@contextlib.contextmanager
def seeded(value: int) -> Iterator[None]:
    """Inside the context, the generators begin with this seed, and no other thread seeds them.

    Afterwards torch has as many threads as before: a task may set them as it reads data or makes a model, as scripts
    do, and the bits of a training depend on them.
    """
    with _DRAWING:
        threads = torch.get_num_threads()  # here: those of a task that another thread is using now do not stay
        seed_all(value)
        try:
            yield
        finally:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)


@contextlib.contextmanager
def random_kept(device: torch.device) -> Iterator[None]:
    """Inside the context, random numbers are drawn as usual; afterwards the generators of torch are as before."""
    kept = {"devices": []} if device.type == "cpu" else {"devices": [device.index or 0], "device_type": device.type}
    with _DRAWING, torch.random.fork_rng(**kept):
        yield


def seed_all(value: int) -> None:
    """Seeds the global generators of torch, numpy and Python."""
    with _DRAWING:
        # Without a device to seed, `torch.manual_seed` takes 200 times as long: it notes who called it, for an error.
        (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(value)
        np.random.seed(value % 2**32)
        random.seed(value)
