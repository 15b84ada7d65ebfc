"""Seeds of the generators that a task's code may draw from."""

import random

import numpy as np
import torch

from fedgsp.seeds import derive


def seed_generators(seed: int, purpose: str, *keys: int) -> None:
    """Seeds all generators for one purpose, such as "training" in a round.

    Then a data set whose samples are drawn at random gives the same ones whatever the node did before.
    """
    seed_all(derive(seed, purpose, *keys))


def seed_all(value: int) -> None:
    """Seeds the global generators of torch, numpy and Python."""
    # Without a device to seed, `torch.manual_seed` takes 200 times as long: it notes who called it, for a later error.
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(value)
    np.random.seed(value % 2**32)
    random.seed(value)
