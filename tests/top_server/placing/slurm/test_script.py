from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import ConfigError, PeerError
from fedgsp.processes.lifecycle import LIFELINE_VARIABLE
from fedgsp.settings.files import load
from fedgsp.settings.run import NodeSettings, RunConfig
from top_server.placing import PLACES, chosen
from top_server.placing.base import CA, OWN, Resources, Worker
from top_server.placing.slurm import commands
from top_server.placing.slurm.command import slurm
from top_server.placing.slurm.commands import environment
from top_server.placing.slurm.job import Job
from top_server.placing.slurm.job import script as job_script
from top_server.placing.slurm.options import SlurmOptions, resource_flags
from top_server.placing.slurm.script import SETTINGS, job_name, lay_out, worker_flags, worker_script
from top_server.placing.workers import workers

SECRET = "-----BEGIN PRIVATE KEY-----"


def options(**given: str) -> SlurmOptions:
    found: SlurmOptions = PLACES["slurm"].read(given)
    return found


def made(folder: Path, count: int = 3) -> list[Worker]:
    config = RunConfig(place="slurm", workers=count, clients=2 * count, threads=2)
    secrets: Any = lambda _: {CA: b"the CA", OWN: SECRET.encode()}  # noqa: E731
    return workers(config, "top:7000", folder / "logs", folder / "state", Resources(2, 0.5, 3000), secrets)


def well_formed(script: str) -> str:
    checked = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=False, timeout=30)
    assert checked.returncode == 0, checked.stderr
    return script


def test_the_flags_have_the_array_the_logs_and_the_resources(tmp_path: Path) -> None:
    folder = tmp_path / "100% a run"
    flags = worker_flags(
        options(partition="gpu", time="2:00:00", sbatch="--qos=long --comment='a b'"), made(folder), "7"
    )
    assert "--array=0,1,2" in flags
    assert f"--output={tmp_path}/100%% a run/logs/node-%a.log" in flags
    assert "--requeue" in flags
    assert {"--cpus-per-task=2", "--gres=gpu:1", "--mem=3000M"} <= {*flags}
    assert flags[-4:] == ["--partition=gpu", "--time=2:00:00", "--qos=long", "--comment=a b"]
    assert f"--job-name={job_name('7')}" in flags


def test_slurm_gives_whole_processors_and_gpus() -> None:
    assert resource_flags(Resources()) == ["--cpus-per-task=1"]
    assert resource_flags(Resources(0.5, 0.25)) == ["--cpus-per-task=1", "--gres=gpu:1"]


@pytest.mark.parametrize("given", [{"time": "soon"}, {"sbatch": "--comment='a"}, {"poll": "0"}, {"gpus": "-1"}])
def test_options_that_cannot_be_used_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="place slurm"):
        options(**given)


def test_a_task_becomes_the_worker_of_its_number(tmp_path: Path) -> None:
    script = well_formed(worker_script(tmp_path / "a folder", "7"))
    assert f"--config '{tmp_path}/a folder'/node-$SLURM_ARRAY_TASK_ID/{SETTINGS}" in script
    assert "exec " in script
    assert "#SBATCH" not in script


def test_settings_and_secrets_of_a_worker_are_files_of_its_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "place" / "node-0"
    (worker, *_) = made(tmp_path)
    lay_out(worker, folder)
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == dict.fromkeys(
        (SETTINGS, CA, OWN), 0o600
    )
    found = load(NodeSettings, folder / SETTINGS)
    assert (found.top_server, found.clients, found.name) == ("top:7000", "0-3/3", "node-0")
    assert (found.tls_ca, found.tls_cert, found.tls_key) == (folder / CA, folder / OWN, folder / OWN)
    assert found.peer_listen is None  # the task says it
    flags = worker_flags(options(), [worker], "7")
    assert SECRET not in " ".join(flags) + worker_script(tmp_path, "7") + (folder / SETTINGS).read_text()


def test_a_job_is_not_changed_by_the_allocation_or_the_parent_around_the_top_server() -> None:
    given = {"SLURM_JOB_ID": "7", "SLURM_CONF": "/c", LIFELINE_VARIABLE: "stdin", "SBATCH_ACCOUNT": "a", "PATH": "/b"}
    assert environment(given) == {"SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a", "PATH": "/b"}


def test_the_job_of_a_top_server_stops_before_its_end_and_goes_back_into_the_queue(tmp_path: Path) -> None:
    job = Job(
        config=tmp_path / "a run.toml",
        run_dir=tmp_path / "50%",
        directory=tmp_path,
        flags=["--time=1:00:00", "--comment=a b"],
        notice_s=90,
    )
    script = well_formed(job_script(job))
    assert script.startswith("#!/bin/sh\n#SBATCH ")
    told = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    assert {"--requeue", "--signal=B:TERM@90", "--time=1:00:00", '--comment="a b"'} <= {*told}
    assert f"--output={tmp_path}/50%%.log" in told
    assert f"set -- --config '{tmp_path}/a run.toml' --run-dir {tmp_path}/50%" in script.replace("'50%'", "50%")
    assert "-eq 143" in script
    assert "scontrol requeue" in script


def test_the_command_prints_the_script_with_what_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text('place = "slurm"\nworkers = 2\nclients = 4\n')
    slurm(Path("run.toml"), Path("run"), time="1-12", partition="long", memory="4G", notice=60, cpus=3)
    script = well_formed(capsys.readouterr().out)
    assert f"set -- --config {tmp_path}/run.toml --run-dir {tmp_path}/run" in script
    for flag in ("--time=1-12", "--partition=long", "--mem=4G", "--signal=B:TERM@60", "--cpus-per-task=3"):
        assert f"#SBATCH {flag}\n" in script


@pytest.mark.parametrize(
    ("settings", "given", "what"),
    [
        ("", {"time": "soon"}, "option time is 'soon'"),
        ('run_dir = "x"', {}, "run_dir in --config and --run-dir are two directories"),
        ("", {"run_dir": Path('a "b"')}, "cannot stand in a job script"),
        ('place = "slum"', {}, "did you mean 'slurm'"),
    ],
)
def test_the_command_refuses_what_a_job_cannot_have(
    tmp_path: Path, settings: str, given: dict[str, Any], what: str
) -> None:
    (tmp_path / "run.toml").write_text(settings)
    with pytest.raises(ConfigError, match=what):
        slurm(tmp_path / "run.toml", **{"run_dir": tmp_path / "run", **given})


def test_a_machine_without_slurm_is_told_before_a_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="needs the command sbatch, which is not on this machine"):
        chosen(RunConfig(place="slurm", workers=2, clients=4))


async def test_a_command_that_cannot_be_started_or_fails_is_an_error_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerError, match="squeue cannot be started"):
        await commands.look("7", "State:|")
    for name in ("squeue", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
        (tmp_path / name).chmod(0o700)
    with pytest.raises(PeerError, match=r"squeue failed: Unable to contact slurm controller; .*scontrol ping"):
        await commands.look("7", "State:|")
    with pytest.raises(ConfigError, match="Slurm refuses the job of the workers: Unable to contact"):
        await commands.submit("#!/bin/sh", ["--array=0"])


async def test_a_command_that_does_not_answer_is_killed_after_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "DEADLINE_S", 0.2)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "squeue").chmod(0o700)
    with pytest.raises(PeerError, match=r"squeue did not answer within 0 s"):
        await commands.look("7", "State:|")


def test_place_srun_needs_an_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    config = RunConfig(place="srun", workers=2, clients=4)
    with pytest.raises(ConfigError, match="this process runs in none") as caught:
        chosen(config)
    assert "salloc" in caught.value.remedy
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert chosen(config) is not None
    with pytest.raises(ConfigError, match="option srun"):
        chosen(RunConfig(place="srun", workers=2, clients=4, place_option={"srun": "'open"}))


def test_place_srun_needs_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ConfigError, match="place srun needs the command srun"):
        chosen(RunConfig(place="srun", workers=2, clients=4))
