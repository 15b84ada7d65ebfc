"""The dtypes of tensors. numpy has no bfloat16: the package ml_dtypes adds it, with its arithmetic.

A cast of float64 to bfloat16 goes through float32, as in torch. numpy does not count bfloat16 as a kind of float, so
code asks `is_float`, and not `dtype.kind`.
"""

from typing import Any

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: By name. A peer's model with another dtype is refused before memory is allocated.
DTYPES: dict[str, np.dtype[Any]] = {
    **{
        name: np.dtype(name)
        for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
    },
    "bfloat16": BFLOAT16,
}


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether the values are floating-point numbers."""
    return dtype.kind == "f" or dtype == BFLOAT16
