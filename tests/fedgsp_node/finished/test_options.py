"""`fedgsp-node evaluate` has the options of the task that the nodes of the run had, or says which differ."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedgsp.errors import ConfigError
from fedgsp.options import shortened
from fedgsp_node.tasks.digits import Digits
from tests.fedgsp_node.finished.test_after_the_run import told
from tests.support.run_directories import trained, write

SEED = {"seed": "5"}
#: As a node tells them, with defaults, and one option that the task does not have here.
ON_NODES = {"seed": "5", "partition": "iid", "validation_share": "0e0", "elsewhere": "x"}


def played(folder: Path, on_nodes: object, **options: str) -> Path:
    """A finished run of digits whose top server was given `options`, and whose first node told `on_nodes`."""
    run = write(folder, Digits(3), {"final": (trained(Digits(3), 1), ())}, task_option={"clients": "3", **options})
    events = folder / "events.jsonl"
    first, *others = [json.loads(line) for line in events.read_text().splitlines()]
    if on_nodes is not None:
        first["task_options"] = on_nodes
    events.write_text("".join(json.dumps(event) + "\n" for event in (first, *others)))
    return run


def test_an_option_that_only_the_nodes_were_given_is_named_with_the_flag(tmp_path: Path) -> None:
    run = played(tmp_path / "run", ON_NODES)
    with pytest.raises(ConfigError) as caught:
        told("evaluate", run, "--clients", "0")
    assert "the task has partition=dirichlet, seed=0, and on the nodes of the run it had partition=iid, seed=5" in str(
        caught.value
    )
    remedy = "give --task-option partition=iid --task-option seed=5, or another value if you want to evaluate on"
    assert caught.value.remedy.startswith(remedy)


def test_with_these_options_the_test_part_is_that_of_the_nodes(tmp_path: Path) -> None:
    run = played(tmp_path / "run", ON_NODES)
    flags = re.findall("--task-option [^ ,]+", remedy_of(run))
    found = json.loads(told("evaluate", run, "--json", *" ".join(flags).split()).stdout)
    samples = [len(Digits(3, seed=5, partition="iid").data(client).test) for client in range(3)]
    assert [found["clients"][str(client)]["samples"] for client in range(3)] == samples


def remedy_of(run: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        told("evaluate", run)
    return caught.value.remedy


def test_an_option_that_is_chosen_may_differ(tmp_path: Path) -> None:
    run = played(tmp_path / "run", {"seed": "5"})
    assert told("evaluate", run, "--task-option", "seed=7").exit_code == 0


@pytest.mark.parametrize("on_nodes", [None, {}, {"seed": "0", "validation_share": "-0"}])
def test_runs_with_the_same_options_and_records_without_them_pass(on_nodes: object, tmp_path: Path) -> None:
    assert told("evaluate", played(tmp_path / "run", on_nodes)).exit_code == 0


def test_options_of_the_top_server_count_as_those_of_the_nodes(tmp_path: Path) -> None:
    assert told("evaluate", played(tmp_path / "run", SEED, **SEED)).exit_code == 0


def test_values_are_quoted_for_a_shell_and_long_ones_are_not_printed_as_values(tmp_path: Path) -> None:
    assert "--task-option 'partition=$(reboot) x'" in remedy_of(played(tmp_path / "a", {"partition": "$(reboot) x"}))
    assert "--task-option partition=VALUE" in remedy_of(played(tmp_path / "b", {"partition": shortened("y" * 300)}))


def test_an_export_needs_no_options_of_the_data(tmp_path: Path) -> None:
    assert told("export", played(tmp_path / "run", ON_NODES), "--out", tmp_path / "x.safetensors").exit_code == 0
