"""The state of an optimiser that travels with a model, as tensors beside the tensors of the model.

They are no trainable tensors, so merges average them as they average buffers. The tensor `optimizer/ENTRY/PARAMETER`
is one entry of the state of one parameter. Entries with a single number, such as the count of steps, are float64
whatever the dtype of the parameter, so that rounding to bfloat16 does not change them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fedgsp.messages import FailureCode, TensorSpec
from fedgsp.tensors.updates import trainable
from fedgsp.tensors.weights import Weights, require

#: How the names of these tensors begin.
PREFIX = "optimizer/"
#: The number of steps behind the state of a parameter; 0: it has no state yet. For an optimiser that does not count
#: its steps, it is 1 from the first step on.
STEP = "step"
#: Entries that are counts, or means or sums of squares or of absolute values.
NOT_NEGATIVE = (
    STEP,
    "exp_avg_sq",
    "max_exp_avg_sq",
    "exp_inf",
    "square_avg",
    "acc_delta",
    "sum",
    "step_size",
)


@dataclass(frozen=True, slots=True)
class StateEntries:
    """The entries that an optimiser keeps for each parameter, by their names in its `state`."""

    #: Entries with the shape and the dtype of the parameter.
    alike: tuple[str, ...] = ()
    #: Entries with one number, `step` included if the optimiser has it.
    numbers: tuple[str, ...] = ()


def name_of(entry: str, parameter: str) -> str:
    """The name of the tensor that holds an entry of the state of a parameter."""
    return f"{PREFIX}{entry}/{parameter}"


def state_tensors(entries: StateEntries, model: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The tensors of the state of an optimiser of this model. The state of the head belongs to the head."""
    parameters = trainable(model)
    numbers = dict.fromkeys((STEP, *entries.numbers))

    def tensor(entry: str, spec: TensorSpec) -> TensorSpec:
        dtype, shape = ("float64", ()) if entry in numbers else (spec.dtype, spec.shape)
        return TensorSpec(name_of(entry, spec.name), dtype, shape, trainable=False, head=spec.head)

    return tuple(tensor(entry, spec) for entry in (*numbers, *entries.alike) for spec in parameters)


def is_state(spec: TensorSpec) -> bool:
    """Whether a tensor is part of the state of an optimiser."""
    return spec.name.startswith(PREFIX)


def without_state(tensors: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The tensors of the model itself."""
    return tuple(spec for spec in tensors if not is_state(spec))


def check_state(weights: Weights) -> None:
    """Raises WeightsError for a negative count or mean square: its root would be NaN at the next client."""
    for spec in weights.tensors:
        if is_state(spec) and spec.name.split("/", 2)[1] in NOT_NEGATIVE:
            array = weights.arrays[spec.name]
            require(
                not array.size or float(array.min()) >= 0,
                FailureCode.NOT_FINITE,
                f"tensor {spec.name!r} holds negative values, which no optimiser leaves there",
            )
