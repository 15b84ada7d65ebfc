"""Other users of the machine read and change no file of ours, and we take none that they made or could change."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fedgsp.commands import python_path
from fedgsp.errors import ConfigError
from fedgsp.owners import SOLE_USER, check_directory, check_secret, check_tree, tell_if_open
from fedgsp.security.tls import load
from fedgsp.settings.files import dump
from fedgsp.settings.run import RunConfig
from fedgsp_node.kept.personal_state import PersonalState
from tests.support.certificates import Authority
from tests.support.processes import top_server
from top_server.record.directory import prepare

ROOT = Path(__file__).resolve().parents[2]
STRANGER = 4242
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o602, 0o610, 0o644, 0o666, 0o777, 0o440])
def test_a_key_that_others_can_use_is_refused_with_the_remedy(authority: Authority, mode: int) -> None:
    files = authority.issue(name=f"{mode:o}")
    files.key.chmod(mode)
    with pytest.raises(ConfigError, match="can be used by") as caught:
        load(files)
    assert caught.value.remedy == f"run: chmod 600 {files.key}"
    for strict in (0o600, 0o400):
        files.key.chmod(strict)
        assert load(files) is not None


@as_root
def test_a_key_of_another_user_is_refused_also_behind_a_link(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue(name="strange")
    link = tmp_path / "link.key"
    link.symlink_to(files.key)
    linked = type(files)(files.ca, files.cert, link)
    assert load(linked) is not None
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(ConfigError, match=f"belongs to user {STRANGER}"):
        load(linked)
    os.chown(files.key, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=f"belongs to user {STRANGER}"):
        load(files)


def test_what_is_no_file_is_no_key_and_nobody_waits_for_it(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue(name="fifo")
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        for wrong in (type(files)(files.ca, files.cert, path), type(files)(path, files.cert, files.key)):
            with pytest.raises(ConfigError, match=r"not a regular file|Is a directory"):
                load(wrong)


@pytest.mark.e2e
async def test_a_run_leaves_nothing_that_others_can_read_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        flags = ["--rounds", "1", "--beta", "1", "--local-nodes", "1", "--clients", "2", "--keep-models", "all"]
        async with top_server(tmp_path, *flags, "--run-dir", str(tmp_path / "new" / "run")) as server:
            await server.event("round_finished")
            seen = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
            open_to = {str(path): oct(path.stat().st_mode) for path in seen if path.exists() and mode(path) & 0o077}
            assert await server.ended() == 0
    finally:
        os.umask(before)
    names = {path.name for path in seen}
    assert {"events.jsonl", "config.toml", "history.jsonl", "logs", "manager-m0.log", "models", "state"} <= names
    assert open_to == {}
    assert [path for path in (tmp_path / "new").rglob("*") if mode(path) & 0o077] == []


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@as_root
def test_another_users_directory_takes_no_run_and_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    os.chown(tmp_path / "runs", STRANGER, STRANGER)
    monkeypatch.chdir(tmp_path)
    for config in (RunConfig(), RunConfig(run_dir=tmp_path / "runs")):
        with pytest.raises(ConfigError, match=f"runs belongs to user {STRANGER}, not to "):
            prepare(config)
    with pytest.raises(ConfigError, match=f"--state-dir .*runs belongs to user {STRANGER}"):
        PersonalState(tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_directory_into_which_others_can_put_files_is_refused(tmp_path: Path) -> None:
    for wrong in (0o777, 0o757, 0o2777, 0o1777):  # in a sticky one they can make a file before this user does
        tmp_path.chmod(wrong)
        with pytest.raises(ConfigError, match="can be changed by every user") as caught:
            check_directory("--state-dir", tmp_path)
        assert caught.value.remedy == f"run: chmod go-w {tmp_path}"
    for right in (0o755, 0o700):
        tmp_path.chmod(right)
        check_directory("--state-dir", tmp_path)


@as_root
def test_a_state_directory_with_the_files_or_links_of_others_is_not_used(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    for planted in (state / "secret", state / ".run-client-0.head.safetensors.tmp"):
        planted.symlink_to(tmp_path / "victim")
        os.lchown(planted, STRANGER, STRANGER)
        with pytest.raises(ConfigError, match=r"--state-dir .* belongs to user"):
            PersonalState(state)
        planted.unlink()
    PersonalState(state)


# --- --resume of a directory that somebody else made


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A run directory that was made to run code: its record names a folder with a module, and a task of that name."""
    folder = tmp_path / "given"
    (folder / "models").mkdir(parents=True)
    folder.chmod(0o755)
    config = RunConfig(task="evil:Task", local_nodes=1, listen="127.0.0.1:0", join_timeout=20.0)
    (folder / "config.toml").write_text(dump(config))
    (folder / "evil.py").write_text("import os\nopen(os.environ['LOOT'], 'w').write('ran')\n")
    begun = {"round": 0, "clients": 1, "nodes": 1, "rounds": 1, "scheme": "fedgsp", "head": []}
    events = [
        {"time": "", "event": "listening", "address": "127.0.0.1:0"},
        {"time": "", "event": "run_started", "run": "abc", "directory": str(folder), **begun},
    ]
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return folder


def resume(folder: Path, directory: Path) -> tuple[bool, subprocess.CompletedProcess[str]]:
    """Whether code of the directory ran, and how the command ended."""
    loot = folder / "loot"
    env = {**os.environ, "LOOT": str(loot), "PYTHONPATH": python_path(str(ROOT))}
    command = [sys.executable, "-m", "top_server", "--resume", str(directory)]
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=40, check=False)
    return loot.exists(), ended


@pytest.mark.e2e
def test_a_given_directory_runs_no_code_even_if_it_is_ours_by_now(given: Path, tmp_path: Path) -> None:
    """As an archive that was unpacked here."""
    ran, ended = resume(tmp_path, given)
    assert not ran
    assert ended.returncode == 2
    assert f"imports evil:Task from {given}" in ended.stderr
    assert ended.stderr.endswith(f"run: cd {given}\n")


@as_root
@pytest.mark.e2e
def test_another_users_directory_is_not_resumed(given: Path) -> None:
    os.chown(given, STRANGER, STRANGER)
    ran, ended = resume(given, given)  # from within, so that nothing else would stop it
    assert (ran, ended.returncode) == (False, 2)
    assert f"--resume {given} belongs to user {STRANGER}" in ended.stderr


@as_root
@pytest.mark.parametrize(
    "name", ["config.toml", "events.jsonl", "models", "state/link", "state/round-0001/state.json"]
)
def test_nothing_in_a_resumed_directory_may_be_of_another_user(given: Path, name: str) -> None:
    (given / "state" / "round-0001").mkdir(parents=True)
    for folder in (given / "state", given / "state" / "round-0001"):
        folder.chmod(0o700)
    (given / "state" / "round-0001" / "state.json").write_text("{}")
    target = given.parent / "elsewhere"
    target.write_text("")
    (given / "state" / "link").symlink_to(target)
    check_tree("--resume", given)
    os.chown(given / name, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=f"{name} belongs to user {STRANGER}"):
        check_tree("--resume", given)


@pytest.mark.parametrize("mode", [0o2777, 0o777])
def test_the_first_start_warns_of_a_directory_that_the_next_one_refuses(
    mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    PersonalState(tmp_path / "closed")
    assert caplog.records == []
    tmp_path.chmod(mode)
    PersonalState(tmp_path / "below" / "state")
    tell_if_open("--run-dir", prepare(RunConfig(run_dir=tmp_path / "run")).path, "this run cannot be resumed")
    assert [record.getMessage() for record in caplog.records] == [
        f"{flag} {tmp_path} can be changed by every user of this machine; run: chmod go-w {tmp_path}; {told}"
        for flag, told in (
            ("--state-dir", "without that, this node cannot be started again"),
            ("--run-dir", "this run cannot be resumed"),
        )
    ]
    with pytest.raises(ConfigError, match=r"--state-dir .* can be changed by every user"):
        PersonalState(tmp_path / "below" / "state")


@pytest.mark.e2e
async def test_a_run_is_played_in_a_folder_that_others_can_change(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    async with top_server(tmp_path, "--local-nodes", "1", "--clients", "2", "--rounds", "1") as process:
        await process.event("run_finished")
        assert f"--run-dir {tmp_path} can be changed by every user" in process.errors


def test_in_a_container_of_one_user_the_modes_of_volumes_do_not_matter(
    given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given.parent.chmod(0o2777)
    with pytest.raises(ConfigError, match="can be changed by every user"):
        check_tree("--resume", given)
    monkeypatch.setenv(SOLE_USER, "1")
    check_tree("--resume", given)


@as_root
def test_in_a_container_of_one_user_a_volume_may_give_its_files_another_owner_and_secrets_may_not(
    given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (given.parent, given, given / "config.toml"):
        os.chown(path, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=f"belongs to user {STRANGER}"):
        check_tree("--resume", given)
    monkeypatch.setenv(SOLE_USER, "1")
    check_tree("--resume", given)
    check_directory("--run-dir", given)
    key = given / "config.toml"
    key.chmod(0o600)
    with pytest.raises(ConfigError, match=f"belongs to user {STRANGER}"):
        check_secret("--key", key, key.stat())


@as_root
@pytest.mark.parametrize("name", ["middle", "middle/second", "first"])
@pytest.mark.parametrize("end", ["", "below/.."])
def test_no_part_of_a_chain_of_links_may_be_of_another_user(given: Path, name: str, end: str) -> None:
    (given / "below").mkdir()
    first, middle = given.parent / "first", given.parent / "middle"
    middle.mkdir()
    (middle / "second").symlink_to("../given")
    first.symlink_to(middle / "second")
    check_tree("--resume", first / end)
    os.chown(given.parent / name, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(ConfigError, match=f"belongs to user {STRANGER}"):
        check_tree("--resume", first / end)


@pytest.mark.parametrize("name", [".", "given", "given/config.toml", "given/models"])
def test_nothing_in_it_or_above_it_may_be_changed_by_others(given: Path, name: str) -> None:
    path = given.parent / name
    path.chmod(path.stat().st_mode | 0o002)
    with pytest.raises(ConfigError, match="can be changed by every user"):
        check_tree("--resume", given)
    link = given.parent / "link"
    link.symlink_to(given)
    with pytest.raises(ConfigError, match="can be changed by every user"):
        check_tree("--resume", link)
