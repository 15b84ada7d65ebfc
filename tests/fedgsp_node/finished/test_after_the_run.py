"""`fedgsp-node export` and `fedgsp-node evaluate`: whole models as files, their scores, and every refusal."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from fedgsp.errors import ConfigError, DataError, TaskError, UserError
from fedgsp.seeds import derive
from fedgsp.tensors.weights import Weights
from fedgsp_node.cli import app
from fedgsp_node.kept.personal_state import HEAD, PERSONAL_MODEL, PersonalState
from fedgsp_node.model.making import model_of
from fedgsp_node.tasks.digits import Digits
from tests.support.frozen_task import Frozen, Named, Tied
from tests.support.kept_state import keep, opened
from tests.support.run_directories import RUN, trained, write
from tests.support.tokens_task import Partly, Tokens

FROZEN, NAMED, TIED = (f"tests.support.frozen_task:{name}" for name in ("Frozen", "Named", "Tied"))
THREE = {"clients": "3"}


def told(*words: str | Path) -> Any:
    """The result of a command that succeeds; raises the UserError of one that does not."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def expected(task: Digits, state: dict[str, torch.Tensor], client: int) -> tuple[int, float, int]:
    """Correct samples, mean loss and samples of a state on a client's test part, without FedGSP."""
    model, test = task.model(), task.data(client).test
    model.load_state_dict(state)
    model.eval()
    with torch.no_grad():
        outputs, labels = model(torch.from_numpy(test.x)), torch.from_numpy(test.y)
    return (
        int((outputs.argmax(1) == labels).sum()),
        float(torch.nn.functional.cross_entropy(outputs, labels)),
        len(labels),
    )


def test_the_accuracy_of_all_together_is_that_of_the_run(tmp_path: Path) -> None:
    """Clients with more labels per sample count no more than their samples do."""
    name = "tests.support.tokens_task:Tokens"
    run = write(tmp_path / "run", Tokens(), {"final": (trained(Tokens(), 1), ())}, task=name)
    found = json.loads(told("evaluate", run, "--task", name, "--json").stdout)
    each = [found["clients"][str(client)] for client in range(2)]
    assert each[0]["accuracy"] != each[1]["accuracy"]
    expected = sum(one["samples"] * one["accuracy"] for one in each) / sum(one["samples"] for one in each)
    assert math.isclose(found["together"]["accuracy"], expected)


def test_clients_without_validation_part_and_figures_that_are_no_numbers_are_told(tmp_path: Path) -> None:
    name = "tests.support.tokens_task:Partly"
    run = write(tmp_path / "run", Partly(), {"final": (trained(Partly(), 1), ())}, task=name)
    result = told("evaluate", run, "--task", name, "--part", "validation")
    assert "note: 1 of 2 clients have a validation part" in result.stderr
    assert "note: odd of client 0 is no finite number" in result.stderr
    assert result.stdout.startswith("client 0: ")
    with pytest.raises(ConfigError, match="client 1 has no validation part"):
        told("evaluate", run, "--task", name, "--part", "validation", "--clients", "1")


def test_a_model_can_be_evaluated_on_validation_parts(tmp_path: Path) -> None:
    options = {**THREE, "validation_share": "0.25"}
    task = Digits(3, validation_share=0.25)
    run = write(tmp_path / "run", task, {"final": (trained(task, 1), ())}, task_option=options)
    sizes = [len(task.data(client).validation or ()) for client in range(3)]
    found = json.loads(told("evaluate", run, "--part", "validation", "--json").stdout)
    assert [found["clients"][str(client)]["samples"] for client in range(3)] == sizes
    assert {one["part"] for one in found["clients"].values()} == {"validation"}
    assert (found["together"]["part"], found["together"]["samples"]) == ("validation", sum(sizes))
    assert f"({sizes[0]} validation samples, final of round" in told("evaluate", run, "--part", "validation").output


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    task = Frozen()
    return write(tmp_path / "run", task, {"final": (trained(task, 5), ())}, task=FROZEN, task_option=THREE, seed=4)


def test_an_exported_file_is_the_whole_model_with_what_did_not_travel(frozen: Path, tmp_path: Path) -> None:
    result = told("export", frozen, "--task", FROZEN, "--out", tmp_path / "whole.safetensors")
    assert "final of round 3" in result.output
    state = load_file(tmp_path / "whole.safetensors")
    Frozen().model().load_state_dict(state)  # strict
    assert np.array_equal(state["3.weight"].numpy(), trained(Frozen(), 5).arrays["3.weight"])
    body = model_of(Frozen(), derive(4, "initial-weights")).state_dict()["1.weight"]
    assert torch.equal(state["1.weight"], body)


def test_a_score_is_that_of_the_exported_model_on_the_same_samples(frozen: Path, tmp_path: Path) -> None:
    told("export", frozen, "--task", FROZEN, "--out", tmp_path / "whole.safetensors")
    state = load_file(tmp_path / "whole.safetensors")
    by_hand = {client: expected(Frozen(), state, client) for client in (0, 2)}
    found = json.loads(told("evaluate", frozen, "--task", FROZEN, "--clients", "0,2", "--json").stdout)
    for client, (right, loss, samples) in by_hand.items():
        one = found["clients"][str(client)]
        assert (one["model"], one["round"], one["samples"]) == ("final", 3, samples)
        assert one["accuracy"] == right / samples
        assert math.isclose(one["loss"], loss, rel_tol=1e-5)
    assert found["together"]["samples"] == sum(samples for _, _, samples in by_hand.values())
    assert found["together"]["accuracy"] == sum(r for r, _, _ in by_hand.values()) / found["together"]["samples"]
    lines = told("evaluate", frozen, "--task", FROZEN, "--clients", "0,2").stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["client 0", "client 2", "together"]
    assert f"accuracy {by_hand[0][0] / by_hand[0][2]:.4f}" in lines[0]


def test_layers_that_share_a_tensor_have_it_under_both_names(tmp_path: Path) -> None:
    run = write(tmp_path / "run", Tied(3), {"final": (trained(Tied(3), 1), ())}, task=TIED, task_option=THREE)
    told("export", run, "--task", TIED, "--out", tmp_path / "new" / "tied.safetensors")
    state = load_file(tmp_path / "new" / "tied.safetensors")
    assert torch.equal(state["1.weight"], state["2.weight"])
    Tied(3).model().load_state_dict(state)


def test_the_task_of_the_run_is_taken_if_it_is_built_in(tmp_path: Path) -> None:
    run = write(tmp_path / "run", Digits(3), {"final": (trained(Digits(3), 1), ())}, task_option=THREE)
    assert "client 1: accuracy" in told("evaluate", run, "--clients", "1").output
    assert len(told("evaluate", run).stdout.splitlines()) == 4


@pytest.fixture
def grouped(tmp_path: Path) -> Path:
    models = {
        "final-group-0000": (trained(Digits(3), 1), (0, 2)),
        "final-group-0001": (trained(Digits(3), 2), (1,)),
        "round-0002": (trained(Digits(3), 3), (0, 1, 2)),
    }
    return write(tmp_path / "run", Digits(3), models, scheme="hcct", task_option=THREE)


def test_a_client_names_the_model_of_its_group(grouped: Path, tmp_path: Path) -> None:
    for client, seed in ((2, 1), (1, 2)):
        told("export", grouped, "--client", str(client), "--out", tmp_path / f"{client}.safetensors")
        state = load_file(tmp_path / f"{client}.safetensors")
        assert all(np.array_equal(state[name], array) for name, array in trained(Digits(3), seed).arrays.items())
    found = json.loads(told("evaluate", grouped, "--json").stdout)["clients"]
    assert [found[str(client)]["model"] for client in range(3)] == [
        "final-group-0000",
        "final-group-0001",
        "final-group-0000",
    ]
    assert "round-0002" in told("evaluate", grouped, "--model", "round-0002", "--clients", "1").output


@pytest.mark.parametrize("command", [("export", "--out", "x.safetensors"), ("evaluate",)])
def test_a_head_that_stays_with_the_client_is_needed_and_taken(command: tuple[str, ...], tmp_path: Path) -> None:
    whole = trained(Digits(3), 1)
    last = sorted({spec.name for spec in whole.tensors if spec.head})
    body = {name: array for name, array in whole.arrays.items() if name not in last}
    without = Weights.of(body, tuple(spec for spec in whole.tensors if not spec.head))
    run = write(tmp_path / "run", Digits(3), {"final": (without, (0, 1, 2))}, scheme="hcct-p", task_option=THREE)
    name, *words = command
    words = [str(tmp_path / word) if word.startswith("x.") else word for word in words]
    whose = ("--client", "1") if name == "export" else ("--clients", "1")
    with pytest.raises(ConfigError, match="the head of client 1 stays on its node") as refused:
        told(name, run, *words, *whose)
    assert all(tensor in refused.value.remedy for tensor in last)
    kept = opened(tmp_path / "state", RUN)
    kept.put(1, HEAD, {one: whole.arrays[one] for one in last}, "3")
    told(name, run, *words, *whose, "--state-dir", tmp_path / "state")
    if name == "export":
        state = load_file(tmp_path / "x.safetensors")
        assert all(np.array_equal(state[one], array) for one, array in whole.arrays.items())


def test_a_head_of_another_run_a_later_round_or_another_form_is_not_put_in(tmp_path: Path) -> None:
    whole = trained(Digits(3), 1)
    last = sorted({spec.name for spec in whole.tensors if spec.head})
    head = {one: whole.arrays[one] for one in last}
    body = {name: array for name, array in whole.arrays.items() if name not in last}
    without = Weights.of(body, tuple(spec for spec in whole.tensors if not spec.head))
    files = {"final": (without, (0, 1, 2)), "round-0001": (without, (0, 1, 2))}
    run = write(tmp_path / "run", Digits(3), files, scheme="hcct-p", task_option=THREE)
    state = tmp_path / "state"
    kept = PersonalState(state)
    kept.open("another run")
    kept.put(1, HEAD, head, "3")
    with pytest.raises(ConfigError, match="state has no head of client 1 of run") as refused:
        told("evaluate", run, "--clients", "1", "--state-dir", state)
    assert refused.value.remedy.startswith("give the --state-dir of the node that hosted the client in this run")
    kept.open(RUN)
    keep(kept, 1, HEAD, head, 3)
    told("evaluate", run, "--clients", "1", "--state-dir", state)
    with pytest.raises(ConfigError, match=r"has no head of client 1 of run .* until round 1"):
        told("evaluate", run, "--model", "round-0001", "--clients", "1", "--state-dir", state)
    kept.put(1, HEAD, {name: array[:1] for name, array in head.items()}, "3")
    with pytest.raises(DataError, match="of the head of client 1 in --state-dir is float32"):
        told("evaluate", run, "--clients", "1", "--state-dir", state)


@pytest.mark.parametrize("rounds", [(9,), (8, 9)])
def test_a_personal_model_of_a_later_round_is_not_put_in(rounds: tuple[int, ...], tmp_path: Path) -> None:
    """Such as after an extension that was interrupted: the last model of the run is older than those of its nodes."""
    shared, own = trained(Digits(3), 1), trained(Digits(3), 2)
    run = write(tmp_path / "run", Digits(3), {"final": (shared, ())}, scheme="ditto", task_option=THREE)
    kept = opened(tmp_path / "state", RUN)
    for number in rounds:
        keep(kept, 1, PERSONAL_MODEL, own.arrays, number)
    out = tmp_path / "one.safetensors"
    result = told("export", run, "--client", "1", "--state-dir", tmp_path / "state", "--out", out)
    assert "is of round 9, and final.safetensors of round 3: they are not put together" in " ".join(
        result.stderr.split()
    )
    assert np.array_equal(load_file(out)["1.weight"], shared.arrays["1.weight"])


def test_a_personal_model_is_taken_from_the_node_and_named_if_it_is_not_here(tmp_path: Path) -> None:
    shared, own = trained(Digits(3), 1), trained(Digits(3), 2)
    run = write(tmp_path / "run", Digits(3), {"final": (shared, ())}, scheme="ditto", task_option=THREE)
    out = tmp_path / "one.safetensors"
    result = told("export", run, "--client", "1", "--out", out)
    assert "the personal model of each client stays on its node" in result.stderr
    assert "--client and --state-dir add it" in " ".join(result.stderr.split())
    assert "--clients and --state-dir add it" in " ".join(told("evaluate", run, "--clients", "1").stderr.split())
    assert np.array_equal(load_file(out)["1.weight"], shared.arrays["1.weight"])
    kept = opened(tmp_path / "state", RUN)
    kept.put(1, PERSONAL_MODEL, own.arrays, "3")
    out = tmp_path / "another.safetensors"
    result = told("export", run, "--client", "1", "--state-dir", tmp_path / "state", "--out", out)
    assert np.array_equal(load_file(out)["1.weight"], own.arrays["1.weight"])
    assert not result.stderr


def test_a_tensor_that_differs_from_that_of_the_run_is_named(frozen: Path, tmp_path: Path) -> None:
    shifted = ("--task", FROZEN, "--task-option", "shift=1")
    for words in (("export", frozen, "--out", tmp_path / "x.safetensors"), ("evaluate", frozen, "--clients", "0")):
        with pytest.raises(DataError, match=r"the tensor '1\.bias', which does not travel, has other values"):
            told(*words, *shifted)
    assert not (tmp_path / "x.safetensors").exists()


def test_a_run_that_recorded_no_digests_is_not_compared_and_that_is_said(tmp_path: Path) -> None:
    task = Frozen()
    models = {"final": (trained(task, 5), ())}
    run = write(tmp_path / "run", task, models, recorded=False, task=FROZEN, task_option=THREE)
    result = told("evaluate", run, "--task", FROZEN, "--clients", "0")
    assert "did not record the digests" in result.stderr


def test_another_width_is_named_by_the_tensor_with_both_shapes(tmp_path: Path) -> None:
    models = {"final": (trained(Frozen(), 5), ())}
    run = write(tmp_path / "run", Frozen(), models, recorded=False, task=FROZEN, task_option=THREE)
    wide = ("--task", FROZEN, "--task-option", "width=9")
    with pytest.raises(
        DataError, match=r"'3\.weight' of .* is float32 \[10, 8\], and the task's model has .*\[10, 9\]"
    ):
        told("evaluate", run, *wide, "--clients", "0")


def test_a_model_with_other_tensors_is_refused(tmp_path: Path) -> None:
    run = write(tmp_path / "a", Digits(3), {"final": (trained(Tied(3), 1), ())}, task_option=THREE)
    told_of = r"(has a tensor '2\.bias' that the task's model has not|lacks the tensor).*"
    remedy = "give the --task and the --task-option of the run, or use the version of fedgsp that made the run"
    with pytest.raises(DataError, match=told_of + remedy):
        told("evaluate", run, "--clients", "0")


@pytest.mark.parametrize(
    ("words", "kind", "what"),
    [
        (("evaluate", "nowhere"), ConfigError, "nowhere holds no run"),
        (("export", "nowhere", "--out", "x.safetensors"), ConfigError, "nowhere holds no run"),
        (("evaluate", "{run}", "--task", "femnist"), ConfigError, "--task is femnist, and the run in"),
        (("evaluate", "{run}", "--model", "best"), ConfigError, "there is no model 'best'"),
        (("evaluate", "{run}", "--clients", "9"), ConfigError, "client 9 has no model 'final'"),
        (("evaluate", "{run}", "--clients", "x"), ConfigError, "--clients 'x' has 'x'"),
        (("evaluate", "{run}", "--device", "tpu"), ConfigError, "--device cannot be 'tpu'"),
        (("evaluate", "{run}", "--part", "validation"), ConfigError, "no client has a validation part"),
        (("evaluate", "{run}", "--part", "validation", "--clients", "0"), ConfigError, "client 0 has no validation"),
        (("evaluate", "{run}", "--state-dir", "nowhere"), ConfigError, "--state-dir nowhere: there is no such folder"),
        (
            ("export", "{run}", "--out", "x.safetensors"),
            ConfigError,
            "the run has several models: final-group-0000 of",
        ),
        (("export", "{run}", "--client", "9", "--out", "x"), ConfigError, "client 9 has no model 'final'"),
        (("export", "{run}", "--client", "0", "--out", "x"), ConfigError, "is no model of transformers or peft"),
        (("export", "{run}", "--client", "0", "--out", "x.safetensors", "--task-option", "a=1"), TaskError, "option"),
    ],
)
def test_a_mistake_is_told_with_what_to_do(
    words: tuple[str, ...],
    kind: type[UserError],
    what: str,
    grouped: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=what) as caught:
        told(*(word.format(run=grouped) for word in words))
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("out", "what"),
    [
        ("here.safetensors", r"--out .*/here\.safetensors exists already; give another name, or remove that file"),
        ("link.safetensors", r"--out .*/link\.safetensors exists already"),
        (
            "task.py",
            r"--out .*/task\.py is a file already, and its name does not end in \.safetensors; give a new name",
        ),
        ("folder.safetensors", r"--out .* is a folder, and a name that ends in \.safetensors is that of a file"),
        ("task.py/x.safetensors", r"--out .*: .*/task\.py is a file and no folder; give another path"),
        ("n" * 240 + ".safetensors", r"n\.safetensors cannot be written: .*File name too long"),
        ("n" * 300 + ".safetensors", "File name too long"),
    ],
)
def test_nothing_is_written_over_and_a_name_that_cannot_be_is_told(out: str, what: str, tmp_path: Path) -> None:
    run = write(tmp_path / "run", Digits(3), {"final": (trained(Digits(3), 1), ())}, task_option=THREE)
    (tmp_path / "here.safetensors").write_text("mine")
    (tmp_path / "task.py").write_text("mine")
    (tmp_path / "link.safetensors").symlink_to("nowhere")
    (tmp_path / "folder.safetensors").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=what) as caught:
        told("export", run, "--out", tmp_path / out)
    assert caught.value.remedy
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "here.safetensors").read_text() == (tmp_path / "task.py").read_text() == "mine"


def test_the_models_of_the_run_itself_are_not_written_over(tmp_path: Path) -> None:
    run = write(tmp_path / "run", Digits(3), {"final": (trained(Digits(3), 1), ())}, task_option=THREE)
    with pytest.raises(ConfigError, match="exists already"):
        told("export", run, "--out", run / "models" / "final.safetensors")


def test_a_client_that_the_task_does_not_have_is_refused_where_all_have_one_model(tmp_path: Path) -> None:
    run = write(tmp_path / "run", Digits(3), {"final": (trained(Digits(3), 1), ())}, task_option=THREE)
    for words, flag in (
        (("export", run, "--client", "9", "--out", tmp_path / "x.safetensors"), "--client"),
        (("evaluate", run, "--clients", "9"), "--clients"),
    ):
        with pytest.raises(TaskError, match="client 9 does not exist: the task has 3 clients") as caught:
            told(*words)
        assert f"choose {flag} from 0-2" in caught.value.remedy


def test_a_client_is_shown_with_its_name(tmp_path: Path) -> None:
    run = write(tmp_path / "run", Named(), {"final": (trained(Named(), 5), ())}, task=NAMED, task_option={})
    lines = told("evaluate", run, "--task", NAMED).stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["client 0", "client 1 (Charité)", "client 2", "together"]
    found = json.loads(told("evaluate", run, "--task", NAMED, "--json").stdout)["clients"]
    assert [one.get("name") for one in found.values()] == [None, "Charité", None]


def test_a_model_of_a_dtype_that_numpy_lacks_is_an_error_of_the_file(tmp_path: Path) -> None:
    run = write(tmp_path / "run", Digits(3), {"final": (trained(Digits(3), 1), ())}, task_option=THREE)
    eighth = {"1.weight": torch.zeros(2).to(torch.float8_e4m3fn)}
    save_file(eighth, run / "models" / "final.safetensors", {"round": "3"})
    with pytest.raises(DataError, match=r"'1\.weight' of .*final\.safetensors is f8_e4m3 \[2\]"):
        told("evaluate", run, "--clients", "0")


def test_an_unfinished_run_has_only_models_of_its_rounds(tmp_path: Path) -> None:
    models = {"round-0001": (trained(Digits(3), 1), ())}
    run = write(tmp_path / "run", Digits(3), models, finished=False, task_option=THREE)
    with pytest.raises(ConfigError, match="is not finished, so it has no final model") as caught:
        told("evaluate", run, "--clients", "0")
    assert "round-0001" in caught.value.remedy
    assert "client 0: accuracy" in told("evaluate", run, "--clients", "0", "--model", "round-0001").output


def test_a_record_alone_does_not_decide_which_code_runs(frozen: Path) -> None:
    with pytest.raises(ConfigError, match=r"has the task tests\.support\.frozen_task:Frozen") as caught:
        told("evaluate", frozen)
    assert caught.value.remedy == f"if you trust that code, give --task {FROZEN}"


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("events.jsonl", "not JSON\n", "is damaged"),
        ("events.jsonl", '{"event": "run_started", "run": "../x"}\n', "is damaged"),
        ("events.jsonl", "", "never began"),
        ("models/final-group-0000.safetensors", "cut", "is no model of a run"),
        ("config.toml", "colour = 1", "there is no setting 'colour'"),
    ],
)
def test_a_damaged_record_is_named(name: str, content: str, what: str, grouped: Path) -> None:
    (grouped / name).write_text(content)
    with pytest.raises(UserError, match=what):
        told("evaluate", grouped)
