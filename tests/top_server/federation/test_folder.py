"""The folder of a federation: its rights, its files when they are damaged, and the top server's own certificate."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from cryptography import x509

from fedgsp.errors import ConfigError, DataError
from fedgsp.security.certificates import renewal_due
from fedgsp.security.tls import TlsFiles, load
from fedgsp.settings.run import RunConfig
from tests.support.federations import invite
from top_server.federation import folder
from top_server.federation.authority import new_authority
from top_server.federation.commands import revoke
from top_server.federation.folder import made, opened
from top_server.federation.opening import certify
from top_server.federation.registry import Entry, Registry, State, new_enrolment


def entry(clients: str) -> Entry:
    return Entry({"digits": clients}, (), 60, new_enrolment(), State.INVITED, time.time() + 60)


def test_nobody_else_can_read_what_is_in_it(tmp_path: Path) -> None:
    invite(tmp_path / "f", "a")
    made(tmp_path / "f").certify(tmp_path / "f" / "own.pem", ["localhost"])
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "f").iterdir()} == {0o600}
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["ca.key", "ca.pem", "registry.json"])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, name: str) -> None:
    invite(tmp_path / "f", "a")
    (tmp_path / "f" / name).chmod(0o640)
    with pytest.raises(ConfigError, match=f"{name} can be used by group"):
        invite(tmp_path / "f", "b", "5")


def test_a_folder_that_others_can_change_is_refused(tmp_path: Path) -> None:
    invite(tmp_path / "f", "a")
    (tmp_path / "f").chmod(0o777)
    with pytest.raises(ConfigError, match="can be changed by every user"):
        opened(tmp_path / "f")


def test_a_folder_without_a_federation_is_told(tmp_path: Path) -> None:
    # A command that is to find a federation never advises to make one: its CA would know no node.
    missing = r"f holds no federation: there is no ca.pem, no ca.key, no registry.json; give the folder that the first"
    for command in (lambda: revoke("a", federation=tmp_path / "f"), lambda: opened(tmp_path / "f")):
        with pytest.raises(ConfigError, match=missing) as caught:
            command()
        assert "NAME" not in str(caught.value)
    with pytest.raises(ConfigError, match=f"{missing}.*if there is none, run: top-server invite NAME"):
        certify(RunConfig(federation=tmp_path / "f", listen="127.0.0.1:0"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=r"holds no federation.*a new or empty folder"):
        made(tmp_path / "other")


@pytest.mark.parametrize("life", ["5s", "9m", "599s"])
def test_a_certificate_that_would_end_before_it_is_renewed_is_refused(tmp_path: Path, life: str) -> None:
    with pytest.raises(ConfigError, match=f"--certificate-for {life} is too short: a node renews .*at least 10m"):
        invite(tmp_path / "f", "a", certificate_for=life)
    assert not (tmp_path / "f").exists()
    invite(tmp_path / "f", "a", certificate_for="10m")


@pytest.mark.parametrize("file", ["ca.key", "ca.pem", "registry.json"])
def test_a_folder_whose_making_was_interrupted_is_made_by_the_next_invitation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    def crash(self: Path, target: Path) -> Path:
        if target.name == file:
            raise SystemExit
        os.rename(self, target)
        return target

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash)
        with pytest.raises(SystemExit):
            invite(tmp_path / "f", "a")
    invite(tmp_path / "f", "b")
    assert opened(tmp_path / "f").registry().nodes.keys() == {"b"}
    ca = opened(tmp_path / "f").authority()
    assert ca.certificate.public_key() == ca.key.public_key()


def test_two_first_invitations_at_the_same_time_make_one_federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, make = threading.Barrier(2), Path.mkdir

    def mkdir(path: Path, *arguments: Any, **more: Any) -> None:
        both.wait(20)  # each has seen that there is nothing
        make(path, *arguments, **more)

    cas = Mock(wraps=new_authority)
    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(Path, "mkdir", mkdir)
        patch.setattr(folder, "new_authority", cas)
        found = list(threads.map(lambda _: made(tmp_path / "f").authority().certificate, range(2)))
    ca = opened(tmp_path / "f").authority()
    assert found == [ca.certificate] * 2
    assert cas.call_count == 1
    assert ca.certificate.public_key() == ca.key.public_key()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"nodes": [], "revoked": {}}', '{"nodes": {"../x": {}}, "revoked": {}}', "[" * 100_000, "\xff"],
)
def test_a_damaged_registry_is_told(tmp_path: Path, text: str) -> None:
    invite(tmp_path / "f", "a")
    (tmp_path / "f" / "registry.json").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=r"registry\.json is damaged"):
        opened(tmp_path / "f").registry()


def test_changes_at_the_same_time_are_all_made(tmp_path: Path) -> None:
    invite(tmp_path / "f", "a")
    now = time.time()

    def change(number: int) -> None:
        one = entry(str(100 + number))
        opened(tmp_path / "f").change(lambda registry: registry.invited(f"n{number}", one, now))

    threads = [threading.Thread(target=change, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found: Registry = opened(tmp_path / "f").registry()
    assert found.nodes.keys() == {"a", *(f"n{number}" for number in range(8))}


def test_the_certificate_of_the_top_server_is_kept_until_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invite(tmp_path / "f", "a")
    here, file = opened(tmp_path / "f"), tmp_path / "f" / "own.pem"
    certificate = here.certify(file, ["localhost", "::1"])
    first, due = file.read_bytes(), renewal_due(certificate)
    assert here.certify(file, ["localhost", "::1"]) == certificate
    assert file.read_bytes() == first
    tls = load(TlsFiles(tmp_path / "f" / "ca.pem", file, file))
    assert tls is not None
    tls.check_covers("::1", "where it is")
    monkeypatch.setattr(folder, "now", lambda: due)
    assert renewal_due(here.certify(file, ["localhost"])) > due - dt.timedelta(minutes=1)
    assert file.read_bytes() != first
    file.write_text("noise")
    here.certify(file, ["localhost"])
    assert x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc > dt.datetime.now(dt.UTC)
