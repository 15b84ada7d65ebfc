"""What golden runs are compared by, and how a case becomes a command."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import typer
from numpy.typing import NDArray

import top_server.cli
from benchmarks.golden.cases import Case, cases
from benchmarks.golden.checkout import GUARD, Checkout, WrongCheckoutError, flags
from benchmarks.golden.compare import compare, markdown
from benchmarks.golden.digests import record, tensor_digest
from top_server.schemes import SCHEMES

ROOT = Path(__file__).parents[2]
TENSORS: dict[str, NDArray[Any]] = {
    "first.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "norm.count": np.array(3, np.int64),
    "last.bias": np.zeros(2, np.float32),
}
ROW = {"round": 1, "accuracy": 0.5, "loss": 1.25}


def saved(path: Path, tensors: dict[str, Any], **metadata: str) -> str:
    safetensors.numpy.save_file(tensors, path, metadata)
    return tensor_digest(path)


def result(**models: str) -> dict[str, Any]:
    versions = dict.fromkeys(("commit", "subject", "machine", "python", "torch", "numpy"), "some")
    runs = {"run": {"models": models, "history": [dict(ROW), {**ROW, "round": 2}]}}
    return {"checkout": versions, "cases": {"one": {"case": {"rounds": "2"}, "runs": runs, "seconds": 1.0}}}


def differences(one: dict[str, Any], other: dict[str, Any]) -> tuple[str, ...]:
    (row,) = compare(one, other)
    return row.differences


def test_a_digest_depends_on_neither_metadata_nor_the_order_of_tensors(tmp_path: Path) -> None:
    turned = dict(reversed(TENSORS.items()))
    digests = {saved(tmp_path / name, each, run=name) for name, each in (("a", TENSORS), ("b", turned))}
    assert len(digests) == 1


def test_names_dtypes_shapes_and_every_bit_change_the_digest(tmp_path: Path) -> None:
    flipped = TENSORS["first.weight"].copy()
    flipped.view(np.uint32)[1, 2] ^= 1
    negative_zero = -TENSORS["last.bias"]
    variants = [
        TENSORS,
        {**TENSORS, "first.weight": flipped},
        {**TENSORS, "first.weight": TENSORS["first.weight"].reshape(3, 2)},
        {**TENSORS, "last.bias": negative_zero},
        {**TENSORS, "last.bias": TENSORS["last.bias"].view(np.int32)},
        {name.replace("last", "head"): tensor for name, tensor in TENSORS.items()},
        {name: tensor for name, tensor in TENSORS.items() if name != "norm.count"},
    ]
    digests = [saved(tmp_path / str(number), variant) for number, variant in enumerate(variants)]
    assert len(set(digests)) == len(variants)


def test_a_record_leaves_out_columns_that_depend_on_time(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    digest = saved(tmp_path / "models" / "final.safetensors", TENSORS)
    (tmp_path / "history.jsonl").write_text('{"round": 1, "accuracy": 0.5, "loss": 1.25, "seconds": 0.3}\n')
    assert record(tmp_path) == {"models": {"final.safetensors": digest}, "history": [ROW]}


def test_equal_results_are_told_with_totals() -> None:
    one = result(final="aa", first="bb")
    table = markdown(one, one, compare(one, copy.deepcopy(one)))
    assert "| one | 2 | 2 | yes |" in table
    assert "| **1 cases** | 2 | 2 | **1 of 1** |" in table


def test_every_kind_of_difference_is_found() -> None:
    one = result(final="aa")
    assert differences(one, result(final="ab")) == ("run/final differs",)
    assert differences(one, result(final="aa", more="bb")) == ("run/more only in B",)

    worse = result(final="aa")
    worse["cases"]["one"]["runs"]["run"]["history"][1]["loss"] = 1.2500000000000002
    assert differences(one, worse) == ("run, round 2: loss",)
    lacking = result(final="aa")
    del lacking["cases"]["one"]["runs"]["run"]["history"][0]["loss"]
    assert differences(one, lacking) == ("run, round 1: loss",)

    shorter = result(final="aa")
    shorter["cases"]["one"]["runs"]["run"]["history"].pop()
    assert differences(one, shorter) == ("run: 2 and 1 rounds",)
    alone = result(final="aa")
    alone["cases"]["one"]["runs"]["alone"] = alone["cases"]["one"]["runs"]["run"]
    assert differences(one, alone) == ("alone/ only in B",)
    assert differences(one, {**one, "cases": {}}) == ("only in A",)
    unlike = copy.deepcopy(one)
    unlike["cases"]["one"]["case"]["rounds"] = "3"
    assert differences(one, unlike) == ("A and B have different settings",)
    failed = {**one, "cases": {"one": {"case": {}, "failed": "exit code 3", "seconds": 1.0}}}
    assert differences(failed, failed) == ("A failed: exit code 3", "B failed: exit code 3")
    assert "exit code 3" in markdown(failed, failed, compare(failed, failed))


def test_options_have_the_flag_of_their_part_or_of_the_grouping_where_the_part_has_none() -> None:
    case = Case(
        settings={"scheme": "hcct", "rounds": "2"},
        profile={"similarity": "sketch"},
        grouping={"alpha": "70"},
        merge={"trim": "0.2"},
        aggregation={"trim": "0.3"},
        training={"mu": "1"},
        task={"clients": "4"},
    )
    for known, of_merge in (("--grouping-option", "grouping"), ("--grouping-option --merge-option X", "merge")):
        found = flags(case, known)
        given = set(zip(found[::2], found[1::2], strict=True))
        assert ("--rounds", "2") in given
        assert ("--rounds", "3") not in given
        assert (f"--{of_merge}-option", "trim=0.2") in given
        assert ("--grouping-option", "similarity=sketch") in given
        assert ("--grouping-option", "alpha=70") in given
        assert ("--training-option", "mu=1") in given
        assert ("--task-option", "clients=4") in given


def test_every_scheme_is_a_case_and_every_flag_exists() -> None:
    known = {flag for parameter in typer.main.get_command(top_server.cli.app).params for flag in parameter.opts}
    of_all = cases(SCHEMES)
    assert {f"scheme {scheme}" for scheme in SCHEMES} <= of_all.keys()
    used = {flag for case in of_all.values() for flag in flags(case, " ".join(known))[::2]}
    assert used <= known


@pytest.mark.parametrize("right", [True, False])
def test_a_process_that_imports_another_checkout_ends_at_once(tmp_path: Path, right: bool) -> None:
    checkout = Checkout(ROOT if right else tmp_path, Path(sys.executable), (), "")
    environment = {**checkout.environment(tmp_path), "PYTHONPATH": os.pathsep.join([str(GUARD), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", "print('it ran')"], cwd=tmp_path, env=environment, capture_output=True
    )
    assert (done.returncode, done.stdout) == ((0, b"it ran\n") if right else (70, b""))
    if right:
        checkout.check_processes(tmp_path, 1)
        with pytest.raises(WrongCheckoutError, match="1 of 2 processes"):
            checkout.check_processes(tmp_path, 2)
    else:
        with pytest.raises(WrongCheckoutError, match="another checkout"):
            checkout.check_processes(tmp_path, 1)
