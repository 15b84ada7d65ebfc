"""Seeds of the generators that a task's code may draw from."""

import random

import numpy as np
import torch

from fedgsp.seeds import derive


def seed_generators(seed: int, purpose: str, *keys: int) -> None:
    """Seeds the global generators of torch, numpy and Python for one purpose, such as "training" in a round.

    Then a data set whose samples are drawn at random gives the same ones whatever the node did before.
    """
    value = derive(seed, purpose, *keys)
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)
