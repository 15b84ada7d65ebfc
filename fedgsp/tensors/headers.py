"""What the header of a safetensors file says of its tensors. A reader compares it before it reads any value.

A header of some bytes can name tensors of any size: a file with holes takes no room for them on its disk.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.tensors.dtypes import DTYPES

#: The dtype and the shape of a tensor.
Kind = tuple[str, tuple[int, ...]]
#: Name in a safetensors file -> name of a dtype that a model may have. Other dtypes are shown as they are.
_DTYPES: Mapping[str, str] = {
    **{"F16": "float16", "F32": "float32", "F64": "float64", "U8": "uint8", "BOOL": "bool", "BF16": "bfloat16"},
    **{"I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64"},
}


def kinds(file: Any) -> dict[str, Kind]:
    """The kinds of the tensors in an open safetensors file, by name."""
    return {name: _kind(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118 (not a mapping)


def _kind(part: Any) -> Kind:
    dtype = str(part.get_dtype())
    return _DTYPES.get(dtype, dtype.lower()), tuple(part.get_shape())


def kinds_of(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, Kind]:
    """The kinds of tensors that are in memory, by name."""
    return {name: (str(array.dtype), array.shape) for name, array in arrays.items()}


def nbytes(kind: Kind) -> int:
    """Bytes of the values of a tensor whose dtype is one of `DTYPES`."""
    return DTYPES[kind[0]].itemsize * math.prod(kind[1])
