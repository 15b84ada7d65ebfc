"""The clients that a node hosts: training, evaluation and histograms on their data."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from fedgsp.errors import ConfigError, UserError
from fedgsp.messages import (
    Additions,
    Constant,
    Evaluated,
    Failure,
    FailureCode,
    HostedClient,
    OptimizerSettings,
    TrainingSettings,
)
from fedgsp.optimizers import KEPT, RELAYED, relayed_entries
from fedgsp.require import require
from fedgsp.seeds import derive, stream
from fedgsp.task import ClientData, Part, Task
from fedgsp.tensors.weights import Weights, without_head
from fedgsp_node.chosen import chosen, chosen_stepping
from fedgsp_node.declared import Declared
from fedgsp_node.determinism import where_possible
from fedgsp_node.devices import CPU
from fedgsp_node.failed_work import why_failed
from fedgsp_node.hosted_data import TEST, HostedData, hosted_ids
from fedgsp_node.kept.kept_tensors import tensors_of
from fedgsp_node.kept.learned import Learned, check_trained
from fedgsp_node.kept.optimizer_state import KeptStates
from fedgsp_node.kept.personal_state import HEAD, OPTIMIZER, PERSONAL_MODEL, TENSORS, Arrays, PersonalState
from fedgsp_node.kept.relayed_state import RelayedState
from fedgsp_node.model.constants import CHANGED, Constants
from fedgsp_node.model.extension import Extension, extension
from fedgsp_node.model.making import model_of
from fedgsp_node.model.model_check import check_model, check_values, values_anew
from fedgsp_node.model.shared_memory import shared_memory_kept
from fedgsp_node.model.torch_weights import bound, swapped, tensor_specs, unbind, weights_of
from fedgsp_node.model.unsaved import Unsaved
from fedgsp_node.order_error import OrderError, failing
from fedgsp_node.rehearsal import known_features, rehearse, training_flop
from fedgsp_node.samples import samples_of
from fedgsp_node.seeding import seed_generators
from fedgsp_node.training.base import LocalWork
from fedgsp_node.training.control import Control, StoppedError
from fedgsp_node.training.evaluation import evaluate
from fedgsp_node.users_code import NOT_OF_TASKS, T, guarded, histogram

#: Seed of random values in a model that are not part of its state. They must be equal on all nodes.
_MODULE_SEED = 0
#: All values of the state of an optimiser before its first step.
_NO_STATE = np.zeros(())


class Clients:
    """Runs the task on the data of its clients, one call at a time, in the node's training thread."""

    def __init__(
        self,
        task: Task,
        ids: Iterable[int] | None,
        personal: PersonalState | None = None,
        device: torch.device = CPU,
        data: HostedData | None = None,
    ) -> None:
        """`device` is where models train and are evaluated; data stay on the CPU until a batch is needed.

        `data` are those of the clients, if they are loaded already.
        """
        self.task = task
        self.device = device
        self.personal = personal or PersonalState()
        #: What the task declares; by `rehearse`.
        self.declared = Declared()
        hosted = hosted_ids(task, ids)
        self._data = data or HostedData(task, dict.fromkeys(hosted))
        module = guarded(lambda: model_of(task, _MODULE_SEED), "model()")
        check_model(module)
        self._constant = tuple(task.constant)
        #: Of its own, from which the constants of a run are made; None before the node joins a run.
        self._seed: int | None = None
        #: The tensors of the task's model that travel, to which the training of a run may add others.
        self.task_tensors = tensor_specs(module, tuple(task.head), self._constant)
        check_values(module, self.task_tensors)
        self._hold(module, Extension())
        first = samples_of(self._data.of(hosted[0]).train, task)
        some, _ = guarded(lambda: first.take(slice(0, 1)), "collate()")
        self.training_flop = guarded(lambda: training_flop(module, some), "model()")
        #: The output of the task's extractor; None if the task names no layer that returns features.
        self.features = known_features(module, task, some)
        self._place()

    def _place(self) -> None:
        """Moves the model to the device, and frees the tensors that travel there."""
        self._module.to(self.device)
        self._unsaved.to(self.device)
        self._constants = Constants(self._module, self._constant)
        unbind(self._module, self._constant)

    @property
    def constants(self) -> tuple[Constant, ...]:
        """The tensors of the model that do not travel, without digests."""
        return self._constants.specs

    def make_constants(self, seed: int) -> tuple[Constant, ...]:
        """Gives the constants the values that a model made from this seed has; returns them with digests."""
        self._seed = seed
        return self._constants.take_from(guarded(lambda: model_of(self.task, seed), "model()"))

    def made_constants(self, seed: int) -> tuple[Constant, ...] | None:
        """The same, if they have been made from this seed already; otherwise None."""
        return self._constants.made if seed == self._seed else None

    def extend(self, additions: Additions | None) -> None:
        """Adds to the model what a run adds to it; what an earlier run has added is taken away.

        Raises ConfigError for an unknown name or option, and TaskError if the model cannot be extended.
        """
        added = extension(additions, self.features, self.task_tensors)
        if not added.tensors and not self._extension.tensors:
            return  # most trainings: the model stays as it is
        self._hold(guarded(lambda: model_of(self.task, _MODULE_SEED), "model()"), added)
        self._place()
        if self.constants and self._seed is not None:
            self.make_constants(self._seed)

    def _hold(self, module: torch.nn.Module, extension: Extension) -> None:
        self._module, self._extension = module, extension
        self._added = guarded(lambda: extension.extend(module), "model()")
        #: No client may leave changed values in it for the next client.
        self._unsaved = Unsaved(module)
        self.tensors = (*self.task_tensors, *extension.tensors)
        self.shared = without_head(self.tensors)

    @where_possible
    def rehearse(self, client: int | None = None) -> None:
        """Tries the task on a few samples of one client; raises TaskError for mistakes that would fail every round.

        Without a number, it is the first client, and what the task declares is known afterwards.
        """
        data = self._data.of(next(iter(self._data.sizes)) if client is None else client)
        # Its own tensors, and not copies as in `initial_weights`: every node of a machine may do this at once.
        made = self.call(lambda: model_of(self.task, 0, self._extension.extend))
        with swapped(self._module, values_anew(made, self._module, self.tensors, self.device)):
            self._unsaved.reset()
            with shared_memory_kept(self._module, made):
                found = rehearse(self._module, self.task, data, self.device)
            self._unsaved.reset()
        name = self._constants_as_made(trains=True)
        require(name is None, CHANGED[0].format(name), CHANGED[1])
        if client is None:
            self.declared = found

    @property
    def hosted(self) -> tuple[HostedClient, ...]:
        """All hosted clients with their numbers of samples."""
        return tuple(self._data.sizes.values())

    def train_samples(self, client: int) -> int:
        """Number of training samples of a client."""
        return self._hosted(client).train_samples

    def training_part(self, client: int) -> Part:
        """The training part of a client's data."""
        return self._of(client).train

    def class_counts(self, client: int) -> tuple[int, ...]:
        """The class histogram of a client's training part."""
        part = self._of(client).train
        return self.call(lambda: histogram(self.task.class_counts(part), self.task.num_classes))

    def initial_weights(self, seed: int) -> Weights:
        """Fresh weights; the same seed gives the same bits on every node."""
        made = self.call(lambda: model_of(self.task, seed, self._extension.extend))
        own = weights_of(made, tuple(self.task.head), self._constant)
        if all(spec.name in own.arrays for spec in self.tensors):
            return own.part(self.tensors)  # without a second copy, which matters for large models
        return Weights.of({spec.name: own.arrays.get(spec.name, _NO_STATE) for spec in self.tensors}, self.tensors)

    def whole(self, client: int, weights: Weights, seed: int, before: int | None = None) -> Weights:
        """The client's whole model: weights without a head get the head that the client keeps, at first a fresh one.

        With a round in `before`: the head that the client had before that round.
        """
        if weights.tensors == self.tensors:
            return weights
        head = self.personal.get_before(client, HEAD, before)
        if head is None:
            head = self.initial_weights(derive(seed, "initial-weights")).arrays
        return Weights.of({**head, **weights.arrays}, self.tensors)

    def head_of(self, whole: Weights) -> Arrays:
        """The tensors of the head of a client's model."""
        return {spec.name: whole.arrays[spec.name] for spec in self.tensors if spec.head}

    @where_possible
    def train(
        self,
        client: int,
        start: Weights,
        settings: TrainingSettings,
        round_number: int,
        control: Control,
        in_place: bool = False,
        optimizer: str = OPTIMIZER,
    ) -> Learned:
        """Trains a client's model from `start`, with the client's own head if `start` has none. Keeps nothing.

        `in_place` allows training to overwrite `start`, if the algorithm does not need the start later. Then nobody
        else may use `start`. `optimizer` is the purpose for which the state of optimisers is kept. Raises OrderError
        if the task raises, or if the training diverges.
        """
        how = chosen(settings)
        before = self.whole(client, start, settings.seed, round_number)
        result = before.to_change() if in_place and how.algorithm.in_place else before.copy()
        afresh = start.tensors != self.tensors and self._lacks(client, HEAD, round_number)
        personal = None
        if how.training.keeps_personal:
            kept = self._personal_model(client, round_number)
            personal, afresh = (kept or before).copy(), afresh or kept is None
        order = stream(settings.seed, "batch-order", round_number, client)
        work = self._work(client, settings, how.options, order, control, before, personal)
        seed_generators(settings.seed, "training", round_number, client)  # data() may have drawn
        work.generator.manual_seed(derive(settings.seed, "transform", round_number, client))
        if how.training.keeps_tensors:
            left = self.personal.get_before(client, TENSORS, round_number)
            work.kept, afresh = tensors_of(left), afresh or left is None
        kept_state, asked = None, settings.optimizer or OptimizerSettings("")
        if asked.state == KEPT:
            state = self.personal.get_before(client, optimizer, round_number)
            work.states = kept_state = KeptStates(state)
            afresh = afresh or state is None
        elif asked.state == RELAYED:
            with failing(FailureCode.BAD_ORDER, UserError):
                work.states = RelayedState(result, relayed_entries(asked.name, asked.options))
        begin = time.perf_counter()
        loss, steps = self._within(result, lambda: how.train(work), trains=True)
        seconds = time.perf_counter() - begin
        check_trained(client, work.no_loss, result, personal)
        keeps = self.call(lambda: how.left(work))
        if personal is not None:
            keeps[PERSONAL_MODEL] = personal.arrays
        if kept_state is not None:
            keeps[optimizer], afresh = kept_state.arrays, afresh or kept_state.anew
        return Learned(before, result, loss, seconds, steps, keeps, afresh, how.training.keeps_head)

    @where_possible
    def evaluate(
        self,
        client: int,
        weights: Weights,
        control: Control,
        settings: TrainingSettings | None = None,
        part: str = TEST,
        personalised_in: int | None = None,
        in_place: bool = False,
        optimizer: str = OPTIMIZER,
    ) -> Evaluated:
        """Correct labels, loss and metrics of a model on a part of the client's data.

        With a round in `personalised_in`, the training algorithm first adapts the model to this client. `in_place`:
        nobody else uses `weights`, so that they may change. `optimizer` is that of `train`.
        """
        self._hosted(client)
        samples = samples_of(self.call(lambda: self._data.part(client, part)), self.task)
        model = self.whole(client, weights, settings.seed if settings else 0)
        afresh = weights.tensors != self.tensors and self._lacks(client, HEAD)
        if settings is not None and personalised_in is not None:
            model = self._personalised(client, model, settings, personalised_in, control)
            training = chosen(settings).training
            afresh = (
                afresh
                or (training.keeps_head and self._lacks(client, HEAD))
                or (training.keeps_personal and self._lacks(client, PERSONAL_MODEL))
                or (training.keeps_tensors and self._lacks(client, TENSORS))
                or ((settings.optimizer or OptimizerSettings("")).state == KEPT and self._lacks(client, optimizer))
            )
        seed_generators(settings.seed if settings else 0, "evaluation", client)
        # Otherwise on a copy: a model may change its state while it is evaluated, but stored weights have a digest.
        judged = model.to_change() if in_place and model is weights else model.copy()
        found = self._within(judged, lambda: evaluate(self._module, self.task, samples, control, self.device))
        return dataclasses.replace(found, afresh=afresh)

    def _personalised(
        self, client: int, model: Weights, settings: TrainingSettings, round_number: int, control: Control
    ) -> Weights:
        how = chosen(settings)
        if how.training.keeps_personal:
            return self._personal_model(client) or model  # a client that has not trained yet has none
        if how.training.keeps_head:
            return Weights.of({**model.arrays, **(self.personal.get_before(client, HEAD, None) or {})}, self.tensors)
        adapt = how.algorithm.adapt
        if adapt is None:
            return model
        adapted = model.copy()
        order = stream(settings.seed, "adaptation-order", round_number, client)
        work = self._work(client, settings, how.options, order, control, model)
        seed_generators(settings.seed, "adaptation", round_number, client)
        work.generator.manual_seed(derive(settings.seed, "adaptation-transform", round_number, client))
        self._within(adapted, lambda: how.run(adapt, work))
        return adapted

    def _work(
        self,
        client: int,
        settings: TrainingSettings,
        options: Any,
        order: np.random.Generator,
        control: Control,
        received: Weights,
        personal: Weights | None = None,
    ) -> LocalWork:
        part = self._of(client).train
        return LocalWork(
            self._module,
            self.task,
            samples_of(part, self.task),
            settings,
            options,
            order,
            control,
            received,
            personal,
            self._added,
            chosen_stepping(settings, self.task),
            device=self.device,
        )

    def _lacks(self, client: int, purpose: str, before: int | None = None) -> bool:
        return self.personal.get_before(client, purpose, before) is None

    def _personal_model(self, client: int, before: int | None = None) -> Weights | None:
        kept = self.personal.get_before(client, PERSONAL_MODEL, before)
        return Weights.of(kept, self.tensors) if kept is not None else None

    def _of(self, client: int) -> ClientData:
        self._hosted(client)
        return self.call(lambda: self._data.of(client))

    def _hosted(self, client: int) -> HostedClient:
        OrderError.require(
            client in self._data.sizes, FailureCode.UNKNOWN_CLIENT, f"client {client} is not hosted here"
        )
        return self._data.sizes[client]

    def _within(self, weights: Weights, call: Callable[[], T], trains: bool = False) -> T:
        def called() -> T:
            self._unsaved.reset()
            with bound(self._module, weights):
                found = call()
            self._unsaved.check_trained()
            return found

        try:
            result = self.call(called)
        except OrderError:
            self._constants_as_made(trains)
            raise
        if (name := self._constants_as_made(trains)) is not None:
            raise OrderError(Failure(FailureCode.TASK_RAISED, ": ".join(CHANGED).format(name)))
        return result

    def _constants_as_made(self, trains: bool) -> str | None:
        """The name of a constant that has changed, None if none has; the next client finds it as it was made."""
        if (name := self._constants.changed(after_training=trains)) is not None:
            self.make_constants(_MODULE_SEED if self._seed is None else self._seed)
        return name

    def call(self, call: Callable[[], T]) -> T:
        """Runs code of the task; an exception of it fails the order, not the node.

        Settings of the order that do not go with the data (ConfigError) are no fault of the task.
        """
        try:
            return call()
        except StoppedError as stopped:
            raise OrderError(stopped.failure) from None
        except ConfigError as error:
            raise OrderError(Failure(FailureCode.BAD_ORDER, str(error))) from error
        except NOT_OF_TASKS:
            raise
        except BaseException as error:
            raise OrderError(Failure(FailureCode.TASK_RAISED, why_failed(error, self.device))) from error
