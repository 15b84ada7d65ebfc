"""A node trains with the threads that it has chosen, although many tasks set them for scripts of their own."""

from __future__ import annotations

import threading

import pytest
import torch

from fedgsp import ClientData
from fedgsp.messages import TrainingSettings
from fedgsp_node.clients import Clients
from fedgsp_node.seeding import seeded
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs

#: Long enough for the other thread to come to the lock.
MEANWHILE_S = 0.1


@pytest.mark.parametrize("where", ["data", "model"])
def test_threads_that_a_task_sets_do_not_stay(where: str) -> None:
    class Sets(Blobs):
        def data(self, client: int) -> ClientData:
            self._set("data")
            return super().data(client)

        def model(self) -> torch.nn.Module:
            self._set("model")
            return super().model()

        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            seen.add(torch.get_num_threads())
            return super().loss(outputs, targets)

        def _set(self, what: str) -> None:
            if what == where:
                torch.set_num_threads(before + 2)

    before, seen = torch.get_num_threads(), set[int]()
    try:
        clients = Clients(Sets(), None)
        clients.rehearse()
        clients.train(0, clients.initial_weights(1), TrainingSettings("sgd", 1, 8, 0.1, seed=1), 1, Control())
        assert seen == {before} == {torch.get_num_threads()}
    finally:
        torch.set_num_threads(before)


def test_nor_do_they_in_a_thread_that_waited_for_that_task() -> None:
    def wait() -> None:
        with seeded(2):
            pass
        seen.append(torch.get_num_threads())

    before, seen, other = torch.get_num_threads(), list[int](), threading.Thread(target=wait)
    try:
        with seeded(1):
            torch.set_num_threads(before + 2)
            other.start()
            other.join(MEANWHILE_S)
        other.join()
        assert seen == [before]
    finally:
        torch.set_num_threads(before)
