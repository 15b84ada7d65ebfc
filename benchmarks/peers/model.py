"""The models for every system: float32 arrays that are never trained."""

from __future__ import annotations

import os
import time

import numpy as np
from numpy.typing import NDArray

#: File in which a process records the time when a round begins or ends.
STAMPS = "PEERS_STAMPS"

#: LEAF's CNN of FEMNIST, 62 classes: 6,603,710 parameters.
CNN = ((32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (2048, 3136), (2048,), (62, 2048), (62,))
CNN_PARAMETERS = 6_603_710
SMALL_PARAMETERS = 100_000
LARGE_PARAMETERS = 62_500_000


def arrays(parameters: int) -> list[NDArray[np.float32]]:
    """The arrays of the CNN, or of five equal layers for another number of parameters."""
    shapes = CNN if parameters == CNN_PARAMETERS else ((parameters // 5,),) * 5
    return [np.ones(shape, np.float32) for shape in shapes]


def stamp(what: str) -> None:
    """Append the time to the file of stamps."""
    with open(os.environ[STAMPS], "a") as file:
        file.write(f"{what} {time.time()}\n")
