"""Arrays of numpy as tensors of torch, and the other way round, in the same memory. torch knows no ml_dtypes."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedgsp.tensors.dtypes import BFLOAT16


def tensor_of(array: NDArray[Any]) -> torch.Tensor:
    """A tensor that shares the memory of an array."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two dense tensors have the same shape and the same values; NaN is the same as NaN."""
    if one.shape != other.shape:
        return False
    if one.dtype == other.dtype and torch.equal(one, other):  # far faster than what follows
        return True
    return bool(((one == other) | ((one != one) & (other != other))).all())


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """An array with the values of a tensor; it shares the memory of a tensor on the CPU."""
    values = tensor.detach().cpu()
    if values.dtype == torch.bfloat16:
        return values.view(torch.uint16).numpy().view(BFLOAT16)
    found: NDArray[Any] = values.numpy()
    return found
