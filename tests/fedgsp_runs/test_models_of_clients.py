"""Heads and personal models, which stay with the nodes of the clients, in Python."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from fedgsp.errors import ConfigError
from fedgsp.tensors.weights import Weights
from fedgsp_node.kept.personal_state import HEAD, PERSONAL_MODEL, PersonalState
from fedgsp_node.tasks.digits import Digits
from fedgsp_runs import Run
from tests.support.run_directories import RUN, trained, write


def recorded(folder: Path, weights: Weights, **settings: Any) -> Run:
    return Run(write(folder, Digits(2), {"final": (weights, ())}, task_option={"clients": "2"}, **settings))


def kept(folder: Path, purpose: str, arrays: Any) -> Path:
    state = PersonalState(folder)
    state.open(RUN)
    state.put(1, purpose, arrays, "3")
    return folder


def test_a_personal_model_comes_from_its_node_and_a_warning_says_that_it_is_missing(tmp_path: Path) -> None:
    shared, own = trained(Digits(2), 1), trained(Digits(2), 2)
    found = recorded(tmp_path / "run", shared, scheme="ditto")
    what = "the personal model of each client stays on its node .*; `client` and `state_dir` add it"
    with pytest.warns(UserWarning, match=what) as told:
        state = found.model(client=1)
    assert [one.filename for one in told] == [__file__]
    assert torch.equal(state["1.weight"], torch.from_numpy(shared.arrays["1.weight"]))
    state = found.model(client=1, state_dir=kept(tmp_path / "node-1", PERSONAL_MODEL, own.arrays))
    assert torch.equal(state["1.weight"], torch.from_numpy(own.arrays["1.weight"]))


def test_a_head_comes_from_its_node(tmp_path: Path) -> None:
    whole = trained(Digits(2), 1)
    head = {spec.name: whole.arrays[spec.name] for spec in whole.tensors if spec.head}
    body = {name: array for name, array in whole.arrays.items() if name not in head}
    found = recorded(
        tmp_path / "run", Weights.of(body, tuple(one for one in whole.tensors if not one.head)), scheme="hcct-p"
    )
    with pytest.raises(ConfigError, match="give `client` and `state_dir` there"):
        found.model(client=1)
    state = found.model(client=1, state_dir=str(kept(tmp_path / "node-1", HEAD, head)))
    assert all(torch.equal(state[name], torch.from_numpy(array)) for name, array in whole.arrays.items())


def test_a_model_before_the_steps_of_a_client_is_named(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", trained(Digits(2), 1), scheme="fedavg", training="finetune")
    with pytest.warns(UserWarning, match="this is the model before these steps"):
        found.model()


@pytest.mark.parametrize("scheme", ["fedavg", "fedgsp", "hcct"])
def test_a_model_that_is_the_evaluated_one_comes_without_a_warning(scheme: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorded(tmp_path / "run", trained(Digits(2), 1), scheme=scheme).model(client=1)


@pytest.mark.parametrize(("folder", "what"), [(3, "`state_dir` is 3"), ("none", "`state_dir` .*none: there is no")])
def test_what_is_no_folder_of_a_node_is_named(folder: Any, what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=what):
        recorded(tmp_path / "run", trained(Digits(2), 1)).model(state_dir=folder)
