"""Client discriminators: small networks that decide from which client a sample is (FedCollab, section 5.1).

All networks of a client are stored and trained together, as one stack. A network for a pair of clients has one output,
which is negative for samples of the client with the smaller id. A shared network has one output per client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fedgsp.discriminators import HIDDEN, MOST_FEATURES
from fedgsp.errors import TaskError
from fedgsp.messages import DiscriminatorSettings, TensorSpec
from fedgsp.seeds import derive, stream
from fedgsp.task import Part, Task
from fedgsp.tensors.weights import Weights, check_finite, check_same_tensors
from fedgsp_node.devices import CPU
from fedgsp_node.model.torch_weights import as_tensor
from fedgsp_node.samples import samples_of, targets_of
from fedgsp_node.seeding import random_kept
from fedgsp_node.training.control import Control

#: The factor of the label's term in the hidden layer; the factor of the features' term is 1.
LABEL_STRESS = 2.0
#: Number of samples that are encoded or judged at once.
BLOCK = 256
Rows: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Encoded:
    """The input of discriminators, made from a client's training part.

    `x` are the features, float32 of shape (n, d); `y` are the labels, int64 of shape (n,).
    """

    x: torch.Tensor
    y: torch.Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.y)


def encoded(task: Task, part: Part, control: Control, scale: float = 1.0) -> Encoded:
    """Encodes a training part by the task's features(), and multiplies the features by `scale`.

    With scale 1, many features of unit deviation outweigh the label if there are few samples. With a scale near 0 only
    labels count, so clients that have the same labels for other inputs look alike. Raises TaskError if the
    labels are not classes or the features are wrong, StoppedError if the work was cancelled.
    """
    y = targets_of(part, task)
    if y.ndim != 1 or y.dtype.kind not in "iub" or task.num_classes < 2:
        found = f"{task.num_classes} classes, and labels of dtype {y.dtype} and shape {y.shape}"
        raise TaskError(
            f"discriminators need one class label per sample, but the task has {found}", "use another grouping"
        )
    samples, blocks = samples_of(part, task), []
    with torch.no_grad():
        for begin in range(0, len(samples), BLOCK):
            block, _ = samples.take(slice(begin, begin + BLOCK))
            number = min(BLOCK, len(samples) - begin)
            features = task.features(block)
            if features.ndim != 2 or len(features) != number:
                raise TaskError(
                    f"the task's features() returned shape {tuple(features.shape)} for {number} samples",
                    "return one row of numbers per sample",
                )
            if features.shape[1] > MOST_FEATURES:
                raise TaskError(
                    f"a sample has {features.shape[1]} features, but discriminators accept at most {MOST_FEATURES}",
                    "override features() to return fewer numbers per sample",
                )
            blocks.append(features.float())
            control.tick()
        features = torch.cat(blocks)
    if not torch.isfinite(features).all():
        raise TaskError("the task's features() returned NaN or infinite values", "fix features()")
    if scale != 1:
        features = features * scale
    return Encoded(features, torch.from_numpy(y.astype(np.int64)), task.num_classes)


def sizes(client: int, others: tuple[int, ...], shared: bool) -> tuple[int, int]:
    """(Number of networks in a client's stack, outputs of each); ValueError if `others` is not a valid list of ids."""
    if len(set(others)) != len(others) or len(others) < (2 if shared else 1) or (client in others) != shared:
        kind = "a shared network" if shared else "pairs"
        raise ValueError(f"client {client} cannot train {kind} with {list(others)}")
    return (1, len(others)) if shared else (len(others), 1)


def tensors(networks: int, outputs: int, features: int, labels: int, hidden: int = HIDDEN) -> tuple[TensorSpec, ...]:
    """Name, dtype and shape of each tensor in a stack of networks."""
    shapes = {
        "features.weight": (networks, hidden, features),
        "features.bias": (networks, hidden),
        "labels.weight": (networks, hidden, labels),
        "labels.bias": (networks, hidden),
        "output.weight": (networks, outputs, hidden),
        "output.bias": (networks, outputs),
    }
    return tuple(TensorSpec(name, "float32", shape) for name, shape in shapes.items())


def fresh(seed: int, networks: int, outputs: int, features: int, labels: int) -> Weights:
    """A stack whose networks all have the same initial weights. The same seed gives the same bits on every node."""
    with random_kept(CPU):
        torch.manual_seed(derive(seed, "discriminator"))
        layers = {
            "features": torch.nn.Linear(features, HIDDEN, dtype=torch.float32),
            "labels": torch.nn.Linear(labels, HIDDEN, dtype=torch.float32),
            "output": torch.nn.Linear(HIDDEN, outputs, dtype=torch.float32),
        }
    arrays = {
        f"{name}.{tensor}": value.detach().numpy()
        for name, layer in layers.items()
        for tensor, value in layer.named_parameters()
    }
    return Weights.of(arrays, tensors(networks, outputs, features, labels))


def split(labels: NDArray[np.int64], samples: int, fold: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Divides a client's samples, with labels of shape (n,), into `samples` training rows and other validation rows.

    Both are sorted. The training rows have the label distribution of all samples. Those of fold 1 are drawn from the
    validation rows of fold 0. Raises ValueError unless there are enough rows for both.
    """
    if not (fold in (0, 1) and 1 <= samples < len(labels) and (fold + 1) * samples <= len(labels)):
        raise ValueError(
            f"{len(labels)} samples cannot be divided into {samples} for training and some for validation"
            f" {fold + 1} times"
        )
    shuffled = rng.permutation(len(labels))
    line = shuffled[np.argsort(labels[shuffled], kind="stable")]
    training = _first_of_each(line, labels, samples)
    if fold:
        training = _first_of_each(line[~np.isin(line, training)], labels, samples)
    chosen = np.zeros(len(labels), bool)
    chosen[training] = True
    return np.flatnonzero(chosen), np.flatnonzero(~chosen)


def _first_of_each(line: Rows, labels: NDArray[np.int64], samples: int) -> Rows:
    """`samples` rows: of each label the first ones in `line`, which has the rows ordered by label."""
    counts = np.unique(labels[line], return_counts=True)[1]
    ends = np.cumsum(counts)
    # The cumulative numbers are rounded, so that the rounding errors of labels do not add up.
    quotas = np.diff(np.rint(ends * samples / len(line)).astype(np.int64), prepend=0)
    return np.concatenate([line[begin : begin + quota] for begin, quota in zip(ends - counts, quotas, strict=True)])


def logits(weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Outputs of all networks, shape (networks, n, outputs), for features of shape (n, d) and labels of shape (n,)."""
    stack = _Stack.of(weights)
    with torch.no_grad():
        return stack.logits(stack.hidden(x, stack.scaled(y)))


def step(
    weights: Weights,
    samples: Encoded,
    client: int,
    others: tuple[int, ...],
    settings: DiscriminatorSettings,
    exchange: int,
    control: Control,
) -> None:
    """Takes the SGD steps of one exchange, in place. All networks train on the same random batches.

    Raises ValueError for invalid arguments, WeightsError if the weights have other shapes or become infinite or NaN,
    and StoppedError if the work was cancelled.
    """
    rows, _ = _rows(weights, samples, client, others, settings)
    if settings.batch_size < 1:
        raise ValueError(f"the batch size {settings.batch_size} is below 1")
    if not weights.buffer.flags.writeable:
        raise ValueError("read-only weights cannot be trained")
    stack = _Stack.of(weights)
    rng = stream(settings.seed, "discriminator-batches", exchange, client)
    with torch.no_grad():
        for _ in range(settings.steps):
            batch = torch.from_numpy(rng.choice(rows, min(settings.batch_size, len(rows)), replace=False))
            x, labels = samples.x[batch], stack.scaled(samples.y[batch])
            hidden = stack.hidden(x, labels)
            outputs = stack.logits(hidden)
            if settings.shared:
                gradient = outputs.softmax(dim=2)
                gradient[:, :, others.index(client)] -= 1
            else:
                # Shape (networks, 1, 1) to match (networks, batch, 1): without the last axis it would match the batch.
                gradient = outputs.sigmoid() - _targets(client, others)[:, None, None]
            stack.descend(x, labels, hidden, gradient / len(batch), settings.learning_rate)
            control.tick()
    check_finite(weights)


def judge(
    weights: Weights,
    samples: Encoded,
    client: int,
    others: tuple[int, ...],
    settings: DiscriminatorSettings,
    control: Control,
) -> tuple[int, ...]:
    """For each of `others`: how many validation samples are classified as the client's, not as the other's.

    There are `len(samples) - settings.samples` validation samples. In a shared network, the larger of the two outputs
    decides; in a tie, the client that comes first in `others`. The entry of the client itself is 0. Raises the errors
    of `step`.
    """
    _, rows = _rows(weights, samples, client, others, settings)
    stack = _Stack.of(weights)
    correct = torch.zeros(len(others), dtype=torch.int64)
    with torch.no_grad():
        for block in torch.split(torch.from_numpy(rows), BLOCK):
            outputs = stack.logits(stack.hidden(samples.x[block], stack.scaled(samples.y[block])))
            if settings.shared:
                place = others.index(client)
                every, own = outputs[0], outputs[0, :, place, None]
                correct[:place] += (own > every)[:, :place].sum(dim=0)
                correct[place + 1 :] += (own >= every)[:, place + 1 :].sum(dim=0)
            else:
                correct += ((outputs[:, :, 0] >= 0) == (_targets(client, others)[:, None] == 1)).sum(dim=1)
            control.tick()
    return tuple(correct.tolist())


def _targets(client: int, others: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([float(client > other) for other in others], dtype=torch.float32)


def _rows(
    weights: Weights, samples: Encoded, client: int, others: tuple[int, ...], settings: DiscriminatorSettings
) -> tuple[Rows, Rows]:
    """Training and validation rows, the same in every exchange; ValueError or WeightsError for wrong arguments."""
    expected = tensors(*sizes(client, others, settings.shared), samples.x.shape[1], samples.classes)
    check_same_tensors(weights.tensors, expected, "a stack of discriminators")
    rng = stream(settings.seed, "discriminator-split", client)
    return split(samples.y.numpy(), settings.samples, settings.fold, rng)


@dataclass(frozen=True, slots=True)
class _Stack:
    """Views of P networks with H hidden units. Activations have shape (n, P * H), logits (P, n, outputs)."""

    features: torch.Tensor  # (P * H, d)
    features_bias: torch.Tensor  # (P * H,)
    labels: torch.Tensor  # (P * H, labels)
    labels_bias: torch.Tensor  # (P * H,)
    output: torch.Tensor  # (P, outputs, H)
    output_bias: torch.Tensor  # (P, outputs)

    @classmethod
    def of(cls, weights: Weights) -> _Stack:
        a, a_bias, b, b_bias, output, output_bias = (as_tensor(array) for array in weights.arrays.values())
        rows = a_bias.numel()
        return cls(a.view(rows, -1), a_bias.view(rows), b.view(rows, -1), b_bias.view(rows), output, output_bias)

    def scaled(self, y: torch.Tensor) -> torch.Tensor:
        """Labels of shape (n,) as one-hot rows; for balanced classes, entries have standard deviation 1."""
        classes = self.labels.shape[1]
        return torch.nn.functional.one_hot(y, classes).float() * (classes / math.sqrt(classes - 1))

    def hidden(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        bias = self.features_bias + LABEL_STRESS * self.labels_bias
        return torch.addmm(bias, x, self.features.t()).addmm_(labels, self.labels.t(), alpha=LABEL_STRESS).relu_()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.output_bias[:, None], self._by_network(hidden), self.output.mT)

    def descend(
        self, x: torch.Tensor, labels: torch.Tensor, hidden: torch.Tensor, gradient: torch.Tensor, learning_rate: float
    ) -> None:
        """One SGD step, given the loss's gradient with respect to the logits; it builds no whole weight gradients."""
        slope = torch.bmm(gradient, self.output).transpose(0, 1).reshape(hidden.shape).mul_(hidden > 0)
        self.output.baddbmm_(gradient.mT, self._by_network(hidden), alpha=-learning_rate)
        self.output_bias.sub_(gradient.sum(dim=1), alpha=learning_rate)
        self.features.addmm_(slope.t(), x, alpha=-learning_rate)
        self.features_bias.sub_(slope.sum(dim=0), alpha=learning_rate)
        self.labels.addmm_(slope.t(), labels, alpha=-LABEL_STRESS * learning_rate)
        self.labels_bias.sub_(slope.sum(dim=0), alpha=LABEL_STRESS * learning_rate)

    def _by_network(self, hidden: torch.Tensor) -> torch.Tensor:
        networks, _, width = self.output.shape
        return hidden.view(len(hidden), networks, width).transpose(0, 1)
