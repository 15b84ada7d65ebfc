"""What a node finds out about a task before the first round: mistakes, the model's features, the cost of training."""

import contextlib
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedgsp.errors import TaskError
from fedgsp.messages import Failure, FailureCode, TensorSpec
from fedgsp.require import require
from fedgsp.scoring import ACCURACY, CLASS_COUNTS, CLASS_LABELS, ONE_OUTPUT
from fedgsp.seeds import derive
from fedgsp.task import ClientData, Part, Split, Task, overrides
from fedgsp_node.declared import Declared, declared
from fedgsp_node.determinism import refusal
from fedgsp_node.devices import CPU, moved
from fedgsp_node.model.arrays import same_values
from fedgsp_node.model.form import form_kept
from fedgsp_node.model.graph import parameters_behind, unregistered
from fedgsp_node.model.nested import leaves, mapped
from fedgsp_node.optimizers import has_own, own
from fedgsp_node.samples import Samples, samples_of
from fedgsp_node.seeding import seeded
from fedgsp_node.training.evaluation import joined, on_cpu
from fedgsp_node.training.factored import large
from fedgsp_node.training.steps import normalises
from fedgsp_node.users_code import batch_of, guarded, histogram, judged, numbers, where

logger = logging.getLogger(__name__)

#: A multiply-add is 2 operations; the backward pass costs about twice the forward pass.
FLOP_PER_MULTIPLY_ADD = 6
_COUNTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_SAMPLES = 2
#: The shapes in torch's warning that a loss compares tensors of different shapes: that of the targets comes first.
_SIZE = re.compile(r"(?:target|input) size \(torch\.Size\(\[([0-9, ]*)\]\)\)")


@contextlib.contextmanager
def _watched(layers: list[nn.Module], watch: Callable[[nn.Module, Any, Any], None]) -> Iterator[None]:
    """Inside the context, `watch` is called with each of the layers, its inputs and its output."""
    hooks = [layer.register_forward_hook(watch) for layer in layers]
    try:
        with torch.no_grad():
            yield
    finally:
        for hook in hooks:
            hook.remove()


def training_flop(module: nn.Module, x: Any) -> int:
    """Floating-point operations of training on the inputs `x` of one sample, in dense and convolution layers.

    They give the modelled computing time (FedGSP's N_calc, section 1.7).
    """
    multiply_adds: list[int] = []

    def tally(layer: nn.Module, _inputs: Any, output: Any) -> None:
        assert isinstance(layer, _COUNTED)
        if isinstance(output, torch.Tensor) and len(layer.weight):  # a layer derived from these may return others
            multiply_adds.append(output.numel() * layer.weight[0].numel())  # a product with a row or kernel

    module.eval()
    with _watched([layer for layer in module.modules() if isinstance(layer, _COUNTED)], tally):
        module(mapped(torch.clone, x))
    return FLOP_PER_MULTIPLY_ADD * sum(multiply_adds)


def features_of(module: nn.Module, layer: str, x: Any) -> TensorSpec:
    """Layer, dtype and number of channels of the features of the inputs `x` of one sample.

    Raises TaskError unless the model has that layer, calls it, and gets from it floats of shape (1, channels, ...).
    """
    names = [name for name, _ in module.named_modules() if name]
    remedy = f"name one of {', '.join(names)}" if names else "give the model a layer"
    require(layer in names, f"the model has no layer {layer!r}, which the task names as `extractor`", remedy)
    found: list[Any] = []
    module.eval()
    with _watched([module.get_submodule(layer)], lambda _layer, _inputs, output: found.append(output)):
        guarded(lambda: module(mapped(torch.clone, x)), "model()")
    require(found, f"the model does not call the layer {layer!r}, which the task names as `extractor`", remedy)
    output = found[0]
    if not (isinstance(output, torch.Tensor) and output.is_floating_point() and output.ndim > 1 and len(output) == 1):
        raise TaskError(
            f"the layer {layer!r} returns no features, but {_shown(output)}", "name a layer with floats per channel"
        )
    return TensorSpec(layer, str(output.dtype).removeprefix("torch."), (output.shape[1],))


def known_features(module: nn.Module, task: Task, x: Any) -> TensorSpec | None:
    """The features of the task's extractor, as `features_of`; None if it names no layer that returns features."""
    layer = guarded(lambda: str(task.extractor or ""), "extractor")
    if not layer:
        return None
    try:
        return features_of(module, layer, x)
    except TaskError as error:  # only a training that needs the features ends by it
        logger.info("%s; %s", error.what, error.remedy)
        return None


def _shown(found: Any) -> str:
    return f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__


def rehearse(module: nn.Module, task: Task, data: ClientData, device: torch.device = CPU) -> Declared:
    """Calls the model and the task's methods with a few samples of each part; returns what the task declares.

    Raises TaskError if a call fails, or if the state of the model gets another form. On training samples the model is
    in training mode first, and goes back, too: then many models return something else. It may change what it keeps.
    """
    named = {"training": data.train, "test": data.test, "validation": data.validation}
    parts = {name: part for name, part in named.items() if part is not None and len(part)}
    with form_kept(module):
        seen = [_rehearse(module, task, name, part, device) for name, part in parts.items()]
    if has_own(task):
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        made = [guarded(lambda: own(task)(parameters, 0.01), "optimizer()") for _ in range(2)]
        require(
            made[0] is not made[1],
            "the task's optimizer() returned the same optimiser twice, whose state would pass from client to client",
            "make it anew in each call; --optimizer-state says what becomes of its state",
        )
    lacks = set[str]().union(*(lacking for lacking, _ in seen))
    failed = None
    try:
        histogram(task.class_counts(data.train), task.num_classes)
    except (Exception, SystemExit) as error:  # schemes that need them are refused when the run starts
        if refusal(error):
            raise
        logger.info("the task has no class histograms, which some schemes need: %s", where(error))
        lacks.add(CLASS_COUNTS)
        # By a TaskError, the default one says that the targets are no classes.
        if overrides(task, "class_counts") or not isinstance(error, TaskError):
            failed = Failure(FailureCode.TASK_RAISED, where(error))
    metrics = set[str]().union(*(metrics for _, metrics in seen))
    found = declared(task, lacks, metrics, failed)
    if unknown := sorted(task.combine.keys() - metrics):
        logger.warning(
            "the task's combine names %s, and metrics() returned %s for two samples: correct the name,"
            " or ignore this if these metrics need more samples",
            ", ".join(map(repr, unknown)),
            ", ".join(map(repr, sorted(metrics))) or "none",
        )
    if ACCURACY in lacks:
        logger.info("the task has no accuracy: correct() finds no class per sample; its score is %s", found.score)
    return found


def _loss(task: Task, outputs: Any, targets: Any) -> Any:
    """The loss; TaskError if torch warns that it compares each output with the targets of all samples.

    It may compare them with one target, which has fewer values.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loss = task.loss(outputs, targets)
    for warning in told:
        shapes = [tuple(map(int, re.findall(r"\d+", text))) for text in _SIZE.findall(str(warning.message))]
        if len(shapes) == 2 and torch.broadcast_shapes(*shapes) not in shapes:
            raise TaskError(
                f"the task's loss() compares tensors of the shapes {shapes[1]} and {shapes[0]}, and so each output"
                f" with the targets of all samples ({Path(warning.filename).name}:{warning.lineno})",
                "give both the same shape, for example with outputs.squeeze(1) or targets.unsqueeze(1)",
            )
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return loss


def _first(samples: Samples, number: int, name: str) -> tuple[Any, Any]:
    """The first samples of a part, read while the global generators have the same state each time."""
    with seeded(derive(0, "rehearsal")):
        return guarded(lambda: samples.take(slice(0, number)), f"collate() on samples of a {name} part")


def _are_alike(some: Any, others: Any) -> bool:
    """Whether two batches have the same values."""
    one, other = list(leaves(some)), list(leaves(others))
    return len(one) == len(other) and all(map(_is_alike, one, other))


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout != torch.strided or one.is_nested:
        return True  # not known
    return same_values(one, other)


def _go_back(module: nn.Module, loss: torch.Tensor) -> None:
    """Goes all of the backward pass, without memory for the gradients of large parameters."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    small = [parameter for parameter in trained if not large(parameter)]
    torch.autograd.grad(loss, small or trained[:1], allow_unused=True)


def _check_outputs(task: Task, outputs: Any, y: Any) -> None:
    """TaskError if the default loss would find no output for a class."""
    tensors = isinstance(outputs, torch.Tensor) and isinstance(y, torch.Tensor)
    if not overrides(task, "loss") and tensors and outputs.ndim > 1 and not y.is_floating_point():
        require(
            outputs.shape[1] >= task.num_classes,
            f"the model returns {outputs.shape[1]} numbers for each sample, and num_classes is {task.num_classes}",
            "let the model return a number for each class, or correct num_classes",
        )


def _rehearse(
    module: nn.Module, task: Task, name: str, part: Part, device: torch.device
) -> tuple[set[str], Iterable[str]]:
    """What the task lacks on this part, and the names of its metrics."""
    samples = samples_of(part, task)
    number = min(_SAMPLES, len(samples))
    some = _first(samples, number, name)
    if not (isinstance(part, Split) or _are_alike(some, _first(samples, number, name))):
        logger.warning(
            "samples of a %s part differ each time they are read, so the results of a client depend on what this node"
            " did before: draw random numbers from global generators, which the node seeds, or in transform()",
            name,
        )
    if name == "training":
        some = batch_of(guarded(lambda: task.transform(*some, torch.Generator()), "transform()"), "transform()")
    x, y = batch = moved(some, device)
    one_output = True
    if name == "training":
        module.train()
        if number > 1 or not normalises(module):  # batch norm takes no mean over one sample; other clients may train
            one_output = isinstance(_learn(module, task, batch), torch.Tensor)
    module.eval()
    with torch.no_grad():
        outputs = guarded(lambda: module(x), f"model() on samples of a {name} part")
        _check_outputs(task, outputs, y)
        right = guarded(lambda: judged(task.correct(outputs, y), y, number), "correct()")
        known = mapped(torch.clone, y)
        guarded(lambda: float(_loss(task, outputs, y)), f"loss() without gradients on samples of a {name} part")
        metrics: Iterable[str] = ()
        if overrides(task, "metrics"):
            together = joined([mapped(on_cpu, (outputs, known))], [number])
            metrics, _ = guarded(lambda: numbers(task.metrics(*together), task.combine), "metrics()")
    lacks = {
        ACCURACY: right is None,
        CLASS_LABELS: not (isinstance(y, torch.Tensor) and y.ndim == 1 and not y.is_floating_point())
        or task.num_classes < 2,
        ONE_OUTPUT: not (one_output and isinstance(outputs, torch.Tensor)),
    }
    return {what for what, lacking in lacks.items() if lacking}, metrics


def _check_parameters(module: nn.Module, strange: dict[int, nn.Parameter]) -> None:
    """TaskError if parameters behind the loss are in layers that the model holds in a list; a warning for others."""
    for name, parameter in unregistered(module) if strange else ():
        require(
            id(parameter) not in strange,
            f"the model's attribute {name!r} holds layers or parameters where torch does not find them, so that they"
            " would not be trained",
            "make it an nn.ModuleList, nn.ModuleDict or nn.ParameterList, or give them requires_grad=False",
        )
    if strange:
        logger.warning(
            "the loss depends on %d parameters that are none of the model's, such as one of shape %s: they are not"
            " trained, and do not travel. Put what a loss learns into the model, and give what is not to learn"
            " requires_grad=False",
            len(strange),
            tuple(next(iter(strange.values())).shape),
        )


def _learn(module: nn.Module, task: Task, batch: tuple[Any, Any]) -> Any:
    """Goes through a batch as a training does, without a step; returns what the model returns there."""
    x, y = mapped(torch.clone, batch)
    own = {id(parameter) for parameter in module.parameters()}
    with seeded(derive(0, "rehearsal")):
        outputs = guarded(lambda: module(x), "model() on samples of a training part")
        loss: Any = guarded(lambda: _loss(task, outputs, y), "loss() on samples of a training part")
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shown = f"a tensor of {_shown(loss)}" if isinstance(loss, torch.Tensor) else _shown(loss)
        raise TaskError(
            f"the task's loss() returned {shown}", "return the mean over the batch, a tensor of one number"
        )
    require(
        loss.requires_grad,
        "the task's loss() returned a tensor without a gradient",
        "compute the loss from `outputs`",
    )
    _check_parameters(module, {id(one): one for one in parameters_behind(loss) if id(one) not in own})
    guarded(lambda: _go_back(module, loss), "backward pass of loss()")
    return outputs
