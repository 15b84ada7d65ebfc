"""Independent random streams from one root seed, one per purpose.

A new purpose never changes the draws of another purpose.
"""

import zlib

import numpy as np

from fedgsp.errors import ConfigError


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """A generator for `purpose` (for example "client-order") and its keys (for example round, group).

    Raises:
        ConfigError: if the seed is negative.
    """
    if seed < 0:
        raise ConfigError(f"seed is {seed}", "give a whole number, 0 or more")
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *keys])


def derive(seed: int, purpose: str, *keys: int) -> int:
    """A 63-bit seed for a library that takes an integer (for example `torch.manual_seed`)."""
    return int(stream(seed, purpose, *keys).integers(2**63))
