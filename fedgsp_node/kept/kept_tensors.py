"""Tensors that a training keeps on the node of a client, from one training of the client to the next."""

from collections.abc import Mapping

import numpy as np
import torch

from fedgsp_node.kept.personal_state import Arrays
from fedgsp_node.model.arrays import array_of, tensor_of


def tensors_of(kept: Arrays | None) -> dict[str, torch.Tensor]:
    """Copies of what was kept, on the CPU; none if nothing was."""
    return {name: tensor_of(np.array(array, order="C")) for name, array in (kept or {}).items()}


def arrays_of(kept: Mapping[str, torch.Tensor], declared: bool) -> Arrays:
    """What a training has left in `LocalWork.kept`.

    Raises TypeError for a value of another type than a dense tensor of real numbers, and ValueError for NaN, infinite
    values, and tensors that the training has not declared.
    """
    if kept and not declared:
        raise ValueError("it left tensors in `kept`, and its declaration does not say keeps_tensors=True")
    arrays = dict[str, np.ndarray]()
    for name, tensor in kept.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise TypeError(f"kept[{name!r}] is a {type(tensor).__name__}, not a tensor under a text as its name")
        if tensor.layout is not torch.strided or tensor.is_complex():
            raise TypeError(f"kept[{name!r}] is sparse or complex, which cannot be kept")
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"kept[{name!r}] holds NaN or infinite values")
        arrays[name] = array_of(tensor.contiguous()).copy()
    return arrays
