"""Summaries of runs: what is kept of a real run, what is refused, and that its settings give its bits again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import sweep
from benchmarks.golden.digests import tensor_digest
from benchmarks.results import __main__ as results
from benchmarks.results.again import again
from benchmarks.results.code import Code, code_here
from benchmarks.results.settings import kept, with_files
from benchmarks.results.store import DATA, Kept, is_kept, keep, keep_models, read
from benchmarks.results.summary import began, of_run
from fedgsp.errors import ConfigError, DataError
from fedgsp.settings.run import RunConfig
from tests.support.finished_runs import finished, history, row
from top_server.record.model_files import load

SETTINGS = {
    "scheme": "hcct",
    "task": "digits",
    "task_option": {"clients": "3"},
    "rounds": 2,
    "clients": 3,
    "local_nodes": 1,
    "seed": 7,
    "learning_rate": 0.05,
    "listen": "127.0.0.1:0",
}
#: Whichever test comes first waits for the real run.
pytestmark = pytest.mark.timeout(180)
CODE = Code("0123abc", True, "0.1.0")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of two rounds."""
    folder = tmp_path_factory.mktemp("real")
    assert sweep.run(SETTINGS, folder / "run"), (folder / "run.log").read_text()
    return folder / "run"


@pytest.fixture(scope="module")
def summary(run: Path) -> Path:
    """Its summary, with its models beside it."""
    return keep(run, "tried", "hcct", CODE, run.parent / "data", weights=True)


@pytest.mark.e2e
def test_a_summary_has_what_tables_need_and_nothing_of_the_machine(run: Path, summary: Path) -> None:
    found, rows = read(summary), [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    served = json.loads((run / "summary.json").read_text())
    assert summary.relative_to(run.parent) == Path("data/tried/hcct-7.json")
    assert (found["experiment"], found["variant"], found["seed"], found["rounds"]) == ("tried", "hcct", 7, 2)
    assert found["code"] == {"commit": "0123abc", "clean": True, "version": "0.1.0"}
    assert found["history"]["accuracy"] == pytest.approx([row["accuracy"] for row in rows], rel=1e-5)
    assert found["totals"]["bytes_relayed"] == sum(row["bytes_relayed"] for row in rows)
    assert found["clients"]["client"] == [0, 1, 2]
    assert found["clients"]["last"] == pytest.approx(list(served["last"]["per_client"].values()), rel=1e-5)
    assert len(found["clients"]["samples"]) == 3
    assert next(iter(found["partitions"])) == "1"
    assert found["settings"]["task_option"] == {"clients": "3"}
    assert not {"listen", "run_dir", "local_run"} & found["settings"].keys()
    assert str(run.parent) not in summary.read_text()
    assert summary.stat().st_size < 8192


def test_every_array_is_a_line_with_short_numbers(summary: Path) -> None:
    lines = summary.read_text(encoding="utf-8").splitlines()
    arrays = [line for line in lines if "[" in line]
    assert arrays
    assert all(line.rstrip(",").endswith("]") for line in arrays)
    numbers = [number for line in arrays for number in line[line.index("[") + 1 : line.index("]")].split(", ")]
    assert all(number == str(float(f"{float(number):.6g}")) for number in numbers if "." in number)


def test_kept_models_are_those_of_the_run(run: Path, summary: Path) -> None:
    names = sorted(path.name for path in (run / "models").glob("final*"))
    assert sorted(path.name for path in summary.parent.glob("*.safetensors")) == [f"hcct-7.{name}" for name in names]
    ours, theirs = load(summary.with_name(f"hcct-7.{names[0]}"))[0], load(run / "models" / names[0])[0]
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours.keys() | theirs.keys())


def test_models_are_kept_beside_a_summary_that_is_there(run: Path, tmp_path: Path) -> None:
    summary = keep(run, "tried", "hcct", CODE, tmp_path)
    assert list(summary.parent.iterdir()) == [summary]
    before = summary.read_bytes()
    models = keep_models(run, "tried", "hcct", tmp_path)
    assert sorted(summary.parent.iterdir()) == sorted([summary, *models])
    assert summary.read_bytes() == before


@pytest.mark.parametrize("name", sorted(str(path.relative_to(DATA)) for path in DATA.glob("*/*.safetensors")))
def test_every_kept_model_has_the_bits_that_its_summary_names(name: str) -> None:
    run, _, model = name.removesuffix(".safetensors").rpartition(".")
    assert read(DATA / f"{run}.json")["models"][model] == tensor_digest(DATA / name)


def test_making_a_summary_again_gives_the_same_bytes(run: Path, summary: Path, tmp_path: Path) -> None:
    assert not is_kept(run, "tried", "hcct", tmp_path)
    again = keep(run, "tried", "hcct", CODE, tmp_path)
    assert is_kept(run, "tried", "hcct", tmp_path)
    assert again.read_bytes() == summary.read_bytes()
    assert list(Kept(tmp_path).runs("tried", "hcct")) == [7]
    assert Kept(tmp_path).runs("tried", "other") == {}


@pytest.mark.e2e
@pytest.mark.slow
def test_the_settings_of_a_summary_give_the_bits_of_its_models(summary: Path, tmp_path: Path) -> None:
    equal, text = again(summary, tmp_path / "run", {})
    assert (equal, text[:13]) == (True, "equal: final-")
    found = read(summary)
    name = min(found["models"])
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**found, "models": {**found["models"], name: "0" * 64}}))
    equal, text = again(other, tmp_path / "run", {})  # the run is there: it is only compared
    assert not equal
    assert text.startswith(f"different: {name}\n")
    assert "the same torch and the same kind of machine" in text


def repository(folder: Path) -> Path:
    """A repository with one committed file that a run executes, and one that it does not."""
    for name in ("fedgsp/code.py", "docs/page.md"):
        path = folder / name
        path.parent.mkdir()
        path.touch()
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet", "--message", "first")
    return folder


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_changed_code_is_refused_unless_it_may_be_and_a_changed_page_is_not(tmp_path: Path) -> None:
    root = repository(tmp_path)
    commit = git(root, "rev-parse", "HEAD")
    (root / "docs" / "page.md").write_text("changed")
    assert code_here(root).commit == commit
    assert code_here(root).clean
    (root / "fedgsp" / "code.py").write_text("changed")
    with pytest.raises(ConfigError, match=r"changed but not committed: fedgsp/code\.py; .*--dirty"):
        code_here(root)
    assert not code_here(root, may_be_dirty=True).clean


def test_a_run_that_is_older_than_the_code_is_refused(tmp_path: Path) -> None:
    root = repository(tmp_path)
    assert code_here(root, began=datetime.now(UTC) + timedelta(minutes=1)).clean
    with pytest.raises(ConfigError, match=r"began before commit .* was made"):
        code_here(root, began=datetime.now(UTC) - timedelta(minutes=1))


def test_without_a_repository_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(ConfigError, match="work in a clone"):
        code_here(tmp_path)


def test_what_is_no_summary_of_a_finished_run_is_refused(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", {"scheme": "hcct"})
    assert began(run) == datetime(2026, 1, 1, tzinfo=UTC)
    (run / "events.jsonl").write_text("")
    with pytest.raises(ConfigError, match="holds no finished run"):
        of_run(run)
    (tmp_path / "some.json").write_text("{}")
    with pytest.raises(DataError, match="is no summary of a run"):
        read(tmp_path / "some.json")


@pytest.mark.parametrize("name", ["a/b", "", "a b"])
def test_a_name_that_is_no_file_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a name"):
        keep(finished(tmp_path / "run", {}), "tried", name, CODE, tmp_path)


def test_models_that_are_too_large_are_not_kept(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.results.store.MOST_BYTES", 1000)
    with pytest.raises(ConfigError, match="and 1000 are kept; leave out --weights"):
        keep(run, "tried", "hcct", CODE, tmp_path, weights=True)
    assert list(tmp_path.iterdir()) == []


def test_rounds_without_an_evaluation_count_for_the_next_one(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", {"scheme": "hcct"})
    rows: list[dict[str, Any]] = [
        {"round": 1, "accuracy": None, "seconds": 1.0, "partition": [[0, 1]]},
        row(2, {0: 0.5, 1: 0.25}, seconds=2.0),
        row(3, {0: 0.75, 1: 0.25}, seconds=4.0, metrics_per_client={"AUC": {"1": 0.5}}),
    ]
    history(run, rows)
    found = of_run(run)
    assert found["history"]["round"] == [2, 3]
    assert found["history"]["seconds"] == [3, 4]
    assert found["history"]["mean"] == [0.375, 0.5]
    assert found["totals"]["seconds"] == 7
    assert found["partitions"] == {"1": "0-1", "2": "0 1"}
    assert found["clients"] == {
        "client": [0, 1],
        "last": [0.75, 0.25],
        "best": [0.75, 0.25],
        "metric AUC": [None, 0.5],
        "last_evaluated": 3,
    }


def test_what_clients_reached_alone_is_kept(tmp_path: Path) -> None:
    same = {"task": "digits", "task_option": {"clients": "2"}, "rounds": 1}
    alone = finished(tmp_path / "alone", {"scheme": "independent", **same}, mean=0.25)
    run = finished(tmp_path / "run", {"scheme": "hcct", "local_run": str(alone), **same})
    found = of_run(run)
    assert found["clients"]["alone"] == [0.25, 0.25]
    assert "local_run" not in found["settings"]


def test_files_are_named_by_their_digest_and_have_to_be_the_same_again(tmp_path: Path) -> None:
    data = tmp_path / "some" / "data.npz"
    data.parent.mkdir()
    data.write_bytes(b"123")
    config = RunConfig(task_option={"data": "some/data.npz", "clients": "3"}, grouping="grpc://elsewhere:1")
    settings, files = kept(config, tmp_path)
    assert settings["task_option"] == {"clients": "3"}
    assert settings["grouping"] == "grpc://"
    (file,) = files["task_option.data"]
    assert (file["name"], file["bytes"], file["sha256"][:8]) == ("data.npz", 3, "a665a459")
    moved = tmp_path / "moved.npz"
    shutil.copyfile(data, moved)
    assert with_files(settings, files, {"task_option.data": str(moved)})["task_option"]["data"] == str(moved)
    moved.write_bytes(b"124")
    for given, said in [
        ({}, "the run read data.npz; say where it is: --task-option data=FILE"),
        ({"task_option.data": str(moved)}, "is not what the run read"),
        ({"task_option.data": str(data), "task_option.seed": "1"}, "read no file as task_option.seed"),
    ]:
        with pytest.raises(ConfigError, match=said):
            with_files(settings, files, given)
    data.unlink()
    with pytest.raises(ConfigError, match="which cannot be read"):
        kept(config, tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["keep", "{tmp}/none", "--experiment", "a", "--variant", "b"], "results: .*none.* cannot be read"),
        (["again", "{tmp}/none.json", "--out", "{tmp}/out"], "results: .*none.json is no summary"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["results", *(word.format(tmp=tmp_path) for word in words)])
    with pytest.raises(SystemExit, match=said) as caught:
        results.main()
    assert "\n" not in str(caught.value)
