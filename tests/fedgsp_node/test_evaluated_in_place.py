from __future__ import annotations

from fedgsp_node.clients import Clients
from fedgsp_node.training.control import Control
from tests.support.blobs_task import Blobs


def test_a_model_that_nobody_else_uses_is_evaluated_in_place_with_the_same_result() -> None:
    clients = Clients(Blobs(), None)
    weights = clients.initial_weights(0)
    judged: list[int] = []
    module = clients._module
    module.register_forward_hook(lambda *_: judged.append(module.get_parameter("0.weight").data_ptr()))
    alone = clients.evaluate(1, weights, Control(), in_place=True)
    shared = clients.evaluate(1, weights, Control())
    assert alone == shared
    home = weights.arrays["0.weight"].ctypes.data
    assert [address == home for address in judged] == [True, False]
