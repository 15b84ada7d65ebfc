"""The classes from which a user builds a task: a model, the data of each client, and a loss."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import TaskError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Split:
    """Samples of one client. `x` are the model's inputs, shape (n, ...); `y` are the targets, usually of shape (n,).

    Without targets, `y` has shape (n, 0). Each is a numpy array (also a memory map), a tensor, or a tuple, list or
    dict of such, all of length n. Raises ValueError for other lengths.
    """

    x: Any
    y: Any

    def __post_init__(self) -> None:
        inputs, targets = set(_lengths(self.x)), set(() if self.y is None else _lengths(self.y))
        if inputs and not targets:
            raise ValueError("there are no labels: without labels, let y be np.zeros((len(x), 0), np.float32)")
        if len(inputs) != 1 or inputs != targets:
            several = any(isinstance(values, list) for values in (self.x, self.y))
            hint = ": a list holds several inputs of each sample, and np.stack makes one array of a list of samples"
            raise ValueError(f"{_counts(inputs)} inputs but {_counts(targets)} labels{hint if several else ''}")

    def __len__(self) -> int:
        return next(_lengths(self.x))


def _lengths(values: Any) -> Iterator[int]:
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, tuple | list):
        for part in values:
            yield from _lengths(part)
    elif not hasattr(values, "__len__"):
        raise ValueError(f"a {type(values).__name__} is no array: give arrays or tensors, and no lists of numbers")
    else:
        yield len(values)


def _counts(lengths: set[int]) -> str:
    return " and ".join(map(str, sorted(lengths))) or "no"


#: A part of a client's data: a Split; or a data set with `len()` and samples by number, such as a
#: `torch.utils.data.Dataset` or one of Hugging Face, which `Task.collate` makes batches of.
Part: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class ClientData:
    """The data of one client: samples for training, for testing and, if it has some, for validation.

    The validation part chooses the best model of a run and its last round (`--keep-models best`, `--patience`), so
    that the test part need not choose what it rates.
    """

    train: Part
    test: Part
    validation: Part | None = None


def _are_classes(outputs: Any, targets: Any) -> bool:
    """Whether there is an output per class, and a class per sample, pixel or token."""
    import torch

    return (
        isinstance(outputs, torch.Tensor)
        and isinstance(targets, torch.Tensor)
        and outputs.ndim > 1
        and outputs.shape[1] > 1
        and not (targets.is_floating_point() or targets.is_complex())
        and targets.shape == (outputs.shape[0], *outputs.shape[2:])
    )


def overrides(task: Task, method: str) -> bool:
    """Whether a task has a method of its own, of its class or as an attribute (`self.loss = nn.MSELoss()`)."""
    return getattr(getattr(task, method), "__func__", None) is not getattr(Task, method)


class Task(abc.ABC):
    """What clients learn. Subclass it, and name the class, or a function that returns a task: `--task module:name`."""

    #: Number of classes; class histograms have this length. 0: the targets are no classes, as in a regression.
    num_classes: int = 0
    #: Number of clients, an int; client ids are 0 .. num_clients - 1. It may also be a property, which mypy allows to
    #: override Any, but not int.
    num_clients: Any
    #: Name prefixes of the classifier head's tensors, such as ("fc2.",); empty: the dense layer registered last.
    head: tuple[str, ...] = ()
    #: Name of the layer that returns the features, such as "conv2" or, in an nn.Sequential, "5". The extractor is what
    #: the model computes up to there, for trainings that need one (FedFusion). Empty or None: the task names none.
    extractor: str = ""
    #: Name prefixes of tensors that training does not change, such as ("embedding.", "norm.running_"). Every node
    #: makes them by model(), from a seed of the run, and they never travel. Nor do parameters without requires_grad.
    constant: tuple[str, ...] = ()
    #: Whether data(client) is fast and always returns the same values. Then nodes do not keep all data in memory.
    data_is_repeatable: bool = False
    #: Whether an epoch leaves out its last batch if it is short, unless it is the only batch.
    drop_last: bool = False
    #: The label of pixels or tokens that neither the default loss() nor the default correct() counts.
    ignore_index: int = -100
    #: What rates a model: a metric of metrics(), "accuracy" or "loss", after a minus sign if smaller values are
    #: better, such as "f1" or "-mae". Empty: accuracy, or "-loss" if the task has no accuracy.
    score: str = ""
    #: Metric -> how the values of several clients become one: "samples", "clients", "root-mean-square", "ratio" or
    #: "sum" (`fedgsp.scoring.WAYS`). Metrics that are not named are averaged, weighted by test samples.
    combine: Mapping[str, str] = MappingProxyType({})
    #: Client -> what people call it, such as the name of a hospital: a mapping, or a sequence with one name for each
    #: client. A node needs only the names of its own clients. It may also be a property.
    client_names: Any = ()

    #: Names of options that may differ between the nodes of a run. Options that are paths always may.
    local_options: tuple[str, ...] = ()

    @abc.abstractmethod
    def model(self) -> torch.nn.Module:
        """A new model on the CPU. The caller seeds torch before, so that random initial weights are repeatable."""

    @abc.abstractmethod
    def data(self, client: int) -> ClientData:
        """The data of one client. Called once per hosted client, or several times if `data_is_repeatable`."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss over a batch, a tensor with one element; by default cross-entropy.

        `outputs` is what the model returned for the batch; `targets` are rows of `Split.y`.
        """
        import torch

        return torch.nn.functional.cross_entropy(outputs, targets, ignore_index=self.ignore_index)

    def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> int | tuple[int, int] | None:
        """Number of correct samples in a batch; or a pair, how many labels are correct and how many there are.

        None if the task has no accuracy. By default a label is correct if the largest output is its own: for outputs
        of shape (n, classes) and whole numbers of shape (n,), or (n, classes, ...) and (n, ...), a class per pixel or
        token, of which those that are `ignore_index` do not count. For other outputs and targets the default is None.
        """
        if not _are_classes(outputs, targets):
            return None
        right = outputs.argmax(dim=1) == targets
        if targets.ndim == 1:
            return int(right.sum())
        judged = targets != self.ignore_index
        return int((right & judged).sum()), int(judged.sum())

    def optimizer(self, parameters: list[torch.nn.Parameter], learning_rate: float) -> torch.optim.Optimizer | None:
        """A new optimiser of the trainable parameters; a task that does not override it trains by plain SGD.

        It is called for each training, unless the run has `--optimizer`. `learning_rate` is the step size of the
        round. A local schedule multiplies the step sizes of all groups of parameters. Its step() has no closure.
        """
        return None

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> Mapping[str, float | tuple[float, float]]:
        """Further figures by name, for the outputs of a client's whole test part; by default none.

        A metric that `combine` calls a "ratio" is a pair (numerator, denominator). NaN says that this client has no
        such figure.
        """
        return {}

    def collate(self, items: Sequence[Any]) -> tuple[Any, Any]:
        """A batch (x, y) of items of a data set, for tasks whose parts are data sets.

        By default as torch does it: items are pairs (x, y), or dicts of which "labels" or "label" is y. Override it to
        pad sequences of different lengths, or to tokenise texts.
        """
        from torch.utils.data import default_collate

        found = default_collate(list(items))
        if isinstance(found, Mapping):
            names = [name for name in ("labels", "label") if name in found]
            if names:
                return {name: found[name] for name in found if name != names[0]}, found[names[0]]
        elif isinstance(found, tuple | list) and len(found) == 2:
            return found[0], found[1]
        raise TaskError(
            f"the default collate() finds no inputs and targets in an item of type {type(items[0]).__name__}",
            "let items be pairs (x, y) or dicts with 'labels', or override collate()",
        )

    def transform(self, x: Any, y: Any, generator: torch.Generator) -> tuple[Any, Any]:
        """The batch on which a model trains, made from a batch of the data (augmentation); by default the same.

        Draw random numbers from `generator` alone: it is seeded by round and client, so that the same bits come out
        wherever the client is hosted. The tensors are on the CPU and may be changed in place.
        """
        return x, y

    def class_counts(self, train: Part) -> NDArray[np.int64]:
        """Number of samples per class in a training part, shape (num_classes,). TaskError if `y` has other values."""
        if not self.num_classes:
            raise TaskError("the task has no classes", "set num_classes and override class_counts()")
        y = train.y if isinstance(train, Split) else self._targets(train)
        if not isinstance(y, np.ndarray):
            raise TaskError(f"y is a {type(y).__name__}, not an array of classes", "override class_counts()")
        if y.ndim != 1 or not np.isin(y, np.arange(self.num_classes)).all():
            raise TaskError(
                f"y of shape {y.shape} and dtype {y.dtype} are not classes 0 .. {self.num_classes - 1}",
                "override class_counts()",
            )
        return np.bincount(y.astype(np.int64), minlength=self.num_classes)

    def _targets(self, dataset: Any) -> NDArray[np.generic]:
        """The targets of all items of a data set, collated one by one."""
        return np.concatenate([np.asarray(self.collate([dataset[i]])[1]) for i in range(len(dataset))])

    def features(self, x: Any) -> torch.Tensor:
        """Features of shape (n, d) for client discriminators, from inputs of shape (n, ...); by default flat inputs.

        Override it with a fixed encoder, so that distances between clients concern more than raw pixels.
        """
        if not hasattr(x, "flatten"):
            raise TaskError(
                f"the inputs are a {type(x).__name__}, of which features() makes no numbers",
                "override features() in the task to return one row of numbers per sample",
            )
        flat: torch.Tensor = x.flatten(1)
        return flat.float()
