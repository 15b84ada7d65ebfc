"""The received model as a second stream: it stays as it came, beside the model that trains (FedMMD, FedFusion)."""

import contextlib
from collections.abc import Iterator

import torch

from fedgsp_node.model.torch_weights import placed, swapped
from fedgsp_node.seeding import random_kept
from fedgsp_node.training.base import LocalWork


class Frozen:
    """The model that the client received, in the module of the model that trains.

    It is in evaluation mode, has no gradients, and computes in the precision and by the operations of the training.
    The random numbers and the batch-norm statistics of the training do not change while it computes.
    """

    def __init__(self, work: LocalWork) -> None:
        self._module = work.module
        self._device = work.device
        self._how = work.stepping
        # A model may write into its tensors in evaluation mode too.
        self.values = placed(work.module, work.received.copy())
        #: Layers that augment inputs: both streams must see the same inputs, so these layers draw as in training.
        self._augmenting = [layer for layer in work.module.modules() if getattr(layer, "augments", False)]

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Inside the context, the module is the received model. A batch must go through it before training sees it.

        The random numbers are afterwards what they were before, so the first layer that draws some draws the same in
        both streams.
        """
        self._module.eval()
        for layer in self._augmenting:
            layer.train()
        try:
            with (
                swapped(self._module, self.values),
                random_kept(self._device),
                torch.no_grad(),
                _op_by_op(),
                self._how.autocast(self._device),
            ):
                yield
        finally:
            self._module.train()


@contextlib.contextmanager
def _op_by_op() -> Iterator[None]:
    """Inside the context, layers of transformers compute as in training.

    In evaluation torch takes a fused operation for them, which knows no autocast on a CPU and rounds otherwise: even
    equal models would differ.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
