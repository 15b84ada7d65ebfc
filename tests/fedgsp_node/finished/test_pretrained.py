"""Exported folders are read by `from_pretrained`, and give the outputs of the model that was exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedgsp import ClientData, Task
from fedgsp.errors import ConfigError, DataError
from fedgsp.seeds import derive
from fedgsp.tensors.weights import Weights
from fedgsp_node.model.making import model_of
from tests.fedgsp_node.finished.test_after_the_run import told
from tests.support.run_directories import trained, write

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

#: What transformers and peft say to each other.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

WORDS = torch.arange(12).reshape(2, 6)


def bert() -> Any:
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
        )
    )


def lora() -> Any:
    return peft.LoraConfig(r=2, lora_alpha=4, target_modules=["query", "value"], init_lora_weights=False)


class Plain(Task):
    num_classes, num_clients = 2, 1

    def model(self) -> nn.Module:
        module: nn.Module = bert()
        return module

    def data(self, client: int) -> ClientData:
        raise DataError("this task has no data", "export needs none")


class Adapted(Plain):
    def model(self) -> nn.Module:
        module: nn.Module = peft.get_peft_model(bert(), lora())
        return module


class Wrapped(Plain):
    """Adapters inside a model that is itself inside of another one."""

    def model(self) -> nn.Module:
        inner = peft.inject_adapter_in_model(lora(), bert())
        for name, parameter in inner.named_parameters():
            parameter.requires_grad_("lora_" in name)
        return nn.ModuleDict({"encoder": inner, "more": nn.Linear(2, 2)})


class Two(Plain):
    def model(self) -> nn.Module:
        return nn.ModuleList([bert(), bert()])


def exported(kind: type[Task], tmp_path: Path, *words: str) -> tuple[Path, Any, Any]:
    """The folder, the model that it should hold, and the result of the command."""
    task, seed = kind(), 7
    weights: Weights = trained(task, seed)
    name = f"{__name__}:{kind.__name__}"
    run = write(tmp_path / "run", task, {"final": (weights, ())}, task=name)
    module = model_of(task, derive(0, "initial-weights"))
    state = {key: torch.from_numpy(array.copy()) for key, array in weights.arrays.items()}
    module.load_state_dict(state, strict=False)
    result = told("export", run, "--task", name, "--out", tmp_path / "out", *words)
    return tmp_path / "out", module, result


def same(left: Any, right: Any) -> None:
    with torch.no_grad():
        torch.testing.assert_close(left.eval()(WORDS).logits, right.eval()(WORDS).logits)


def test_a_model_of_transformers_is_a_folder_that_it_reads(tmp_path: Path) -> None:
    folder, module, _ = exported(Plain, tmp_path)
    same(transformers.BertForSequenceClassification.from_pretrained(folder), module)


def test_a_model_with_an_adapter_is_a_folder_with_the_adapter(tmp_path: Path) -> None:
    folder, module, _ = exported(Adapted, tmp_path)
    assert (folder / "adapter_config.json").is_file()
    base: Any = bert()
    adapted: Any = module
    base.load_state_dict(
        {
            name.replace(".base_layer", ""): value
            for name, value in adapted.base_model.model.state_dict().items()
            if "lora_" not in name
        }
    )
    same(peft.PeftModel.from_pretrained(base, folder), module)


def test_a_merged_adapter_needs_no_peft(tmp_path: Path) -> None:
    folder, module, _ = exported(Adapted, tmp_path, "--merge-adapters")
    assert not (folder / "adapter_config.json").exists()
    same(transformers.BertForSequenceClassification.from_pretrained(folder), module)


def test_adapters_inside_a_model_are_merged_and_what_is_outside_is_named(tmp_path: Path) -> None:
    folder, module, result = exported(Wrapped, tmp_path)
    same(transformers.BertForSequenceClassification.from_pretrained(folder), module["encoder"])
    assert "more.weight, more.bias" in result.stderr


def test_several_models_of_transformers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="several models of transformers: 0, 1"):
        exported(Two, tmp_path)


def test_a_folder_with_files_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("kept")
    with pytest.raises(ConfigError, match="is not empty"):
        exported(Plain, tmp_path)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]
