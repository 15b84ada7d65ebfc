"""Runs of MLflow, in the store that a server can have too, and on a real server where its package is installed.

That package (`mlflow`, in place of `mlflow-skinny`) is large, and needed for nothing else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.tracking import BEGAN, about_run, points_of
from top_server.tracking import MlflowOptions
from top_server.tracking.base import Outcome
from top_server.tracking.mlflow import Mlflow

#: The program of a server, in the folder that this variable names: `bin` of an environment with package mlflow.
SERVER = shutil.which("mlflow", path=os.environ.get("MLFLOW_SERVER_PATH"))
DEADLINE_S = 150.0


@contextlib.contextmanager
def server(folder: Path) -> Iterator[str]:
    """A tracking server; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(SERVER), "server", "--backend-store-uri", f"sqlite:///{folder}/store.db", "--port", str(port)]
    with (folder / "server.log").open("wb") as log:
        running = subprocess.Popen([*command, "--workers", "1"], cwd=folder, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                break
            assert running.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() < deadline, "the server does not answer"
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(DEADLINE_S)


def only_run(client: Any) -> Any:
    (experiment,) = [one for one in client.search_experiments() if one.name == "ours"]
    (found,) = client.search_runs([experiment.experiment_id])
    return found


def points(client: Any, run: Any, name: str = "score") -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)]


def play(folder: Path, uri: str, clients: int = 5) -> None:
    """Follows a run, and again when it is resumed."""
    options, about = MlflowOptions(to=uri, experiment="ours"), about_run(folder)
    first = Mlflow(options)
    assert first.begin(about) == 0
    first.add(points_of(1, clients))
    second = Mlflow(options)
    assert second.begin(about) == 1
    second.add(points_of(2, clients))
    run = only_run(second._client)
    assert run.info.status == "RUNNING"
    second.end(Outcome("failed", BEGAN, "the disk is full"))
    run = only_run(second._client)
    assert points(second._client, run) == [(1, 0.1), (2, 0.2)]
    assert points(second._client, run, f"client/{clients - 1}/train_loss")[1:] == [(2, (clients - 1) / 10)]
    assert points(second._client, run, "metrics/AUC _macro_ _ _") == [(1, 0.5), (2, 0.5)]
    assert run.data.params["task_option.sites"] == "a|b <i>c</i>"
    assert len(run.data.params) == len(about.parameters)
    assert (run.info.status, run.info.run_name) == ("FAILED", "a run")
    assert run.data.tags["fedgsp.reason"] == "the disk is full"
    assert run.data.tags["mlflow.source.git.commit"] == "f" * 40


def test_a_run_is_found_again_and_has_no_point_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    play(tmp_path, (tmp_path / "store").as_uri())
    assert capfd.readouterr().out == ""  # stdout is that of the run


def test_a_server_that_is_away_is_an_error_within_seconds_and_nothing_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        tracking = Mlflow(MlflowOptions(to=f"http://127.0.0.1:{nobody.getsockname()[1]}"))
        with pytest.raises(Exception, match="Connection refused"):
            tracking.begin(about_run(tmp_path))
    assert caplog.records == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif("MLFLOW_SERVER_PATH" not in os.environ, reason="MLFLOW_SERVER_PATH names no folder with mlflow")
def test_a_real_server_gets_the_same(tmp_path: Path) -> None:
    with server(tmp_path) as uri:
        play(tmp_path, uri, clients=1200)  # more figures than one request may have
