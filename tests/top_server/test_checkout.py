"""The commit that a run records."""

from __future__ import annotations

import subprocess
from pathlib import Path

from top_server.checkout import commit


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    told = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return told.stdout.strip()


def test_a_checkout_is_known_by_its_commit_and_whether_files_are_changed(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert commit(tmp_path) == ""  # nothing is committed
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    git(tmp_path, "tag", "v1")
    assert commit(tmp_path) == git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "file").write_text("2")
    assert commit(tmp_path) == f"{git(tmp_path, 'rev-parse', 'HEAD')}-dirty"


def test_a_folder_that_is_no_checkout_has_no_commit(tmp_path: Path) -> None:
    assert commit(tmp_path) == ""
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    assert commit(tmp_path) == ""
