"""What single clients showed is nobody else's on a shared machine, whoever made the folder and when."""

from __future__ import annotations

import re
from pathlib import Path
from stat import S_IMODE

import numpy as np
import pytest

from fedgsp.settings.run import RunConfig
from tests.support.cluster import play, settings
from tests.support.staged import stage
from top_server.record.directory import RunDirectory, make_state, prepare
from top_server.record.journal import Line

pytestmark = pytest.mark.usefixtures("usual_umask")

DEPLOYMENT = Path(__file__).parents[3] / "docs" / "deployment.md"


def mode(path: Path) -> int:
    return S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("before", [None, 0o755, 0o2770])
def test_the_folder_of_the_state_is_its_owners_also_if_it_was_there_before(tmp_path: Path, before: int | None) -> None:
    directory = prepare(RunConfig(run_dir=tmp_path / "run"))
    if before is not None:
        directory.state.mkdir()
        (directory.state / "round-0001").mkdir()
        directory.state.chmod(before)
    for _ in range(2):
        make_state(directory)
        assert mode(directory.state) & 0o777 == 0o700
    assert (directory.state / "round-0001").exists() is (before is not None)


def test_a_disk_without_file_permissions_gives_a_warning_and_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    directory = RunDirectory(tmp_path)
    directory.state.mkdir()
    monkeypatch.setattr(Path, "chmod", refuse)
    make_state(directory)
    assert caplog.messages == [f"{tmp_path}/state can be read by others on this machine: Operation not permitted"]


async def test_clients_updates_are_saved_where_others_cannot_come(tmp_path: Path) -> None:
    async with stage("none", run_dir=tmp_path) as s:
        s.current = s.profile("updates")
        s.current.updates.keep(1, np.ones(1, np.float32))
        try:
            await s.save(tmp_path, 1)
        finally:
            s.current.close()
    assert (tmp_path / "state" / "round-0001" / "update-1.npy").exists()
    assert mode(tmp_path / "state") == 0o700


@pytest.mark.e2e
async def test_the_folder_is_private_before_local_nodes_keep_anything_there(tmp_path: Path) -> None:
    directory, found = RunDirectory(tmp_path / "run"), {}

    def look(event: Line) -> None:
        if event["event"] == "node_joined":  # no state was saved yet
            found.update({path.name: mode(path) for path in (directory.state, *directory.state.iterdir())})

    await play(settings(directory.path, local_nodes=1, rounds=1), [], on_event=look)
    assert found == {"state": 0o700, "node-0": 0o700}


def test_services_as_the_page_has_them_keep_all_of_the_record_to_their_user() -> None:
    units = re.findall(r"^```ini\n(.*?)^```", DEPLOYMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert ["UMask=0077" in unit.splitlines() for unit in units] == [True, True]
