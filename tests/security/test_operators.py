"""Certificates of operators: how they are issued, and that a revoked one sees nothing more."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import pkcs12
from typer.testing import CliRunner

from fedgsp.security.tls import load
from fedgsp.settings.web import WebSettings
from tests.security.test_metrics_door import asked, said, status
from tests.security.test_web import served
from tests.support.recordings import long_run
from top_server.cli import app
from top_server.federation.folder import opened
from top_server.federation.opening import certify
from top_server.metrics import door
from top_server.metrics.state import State


def call(*words: str, federation: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command of top-server."""
    found = CliRunner().invoke(app, [*words, "--federation", str(federation)])
    return found.exit_code, found.stdout, f"{found.stderr}{found.exception or ''}"


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    folder = tmp_path / "federation"
    assert call("invite", "site", "--clients", "0-3", federation=folder)[0] == 0
    return folder


def holder(federation: Path, file: Path) -> ssl.SSLContext:
    """What a program needs that shows this certificate."""
    context = ssl.create_default_context(cafile=str(federation / "ca.pem"))
    context.load_cert_chain(file)
    return context


def test_the_file_for_browsers_opens_with_the_printed_password_alone(federation: Path, tmp_path: Path) -> None:
    code, password, _ = call("operator", "ann", "--out", str(tmp_path / "keys"), federation=federation)
    assert code == 0
    packed, plain = tmp_path / "keys" / "ann.p12", tmp_path / "keys" / "ann.pem"
    assert {file.stat().st_mode & 0o777 for file in (packed, plain)} == {0o600}
    key, certificate, others = pkcs12.load_key_and_certificates(packed.read_bytes(), password.strip().encode())
    assert key is not None
    assert certificate is not None
    assert others == [opened(federation).authority().certificate]
    certificate.verify_directly_issued_by(others[0])
    with pytest.raises(ValueError, match="password"):
        pkcs12.load_key_and_certificates(packed.read_bytes(), b"another")
    holder(federation, plain)


def test_no_file_and_no_good_certificate_is_replaced(federation: Path, tmp_path: Path) -> None:
    out = str(tmp_path)
    assert call("operator", "ann", "--out", out, federation=federation)[0] == 0
    before = (tmp_path / "ann.pem").read_bytes()
    assert "is there already" in call("operator", "ann", "--out", out, federation=federation)[2]
    assert "still good" in call("operator", "ann", "--out", f"{out}/other", federation=federation)[2]
    assert call("revoke", "ann", "--operator", federation=federation)[0] == 0
    assert "is there already" in call("operator", "ann", "--out", out, federation=federation)[2]
    assert (tmp_path / "ann.pem").read_bytes() == before
    assert opened(federation).registry().operators == {}
    assert call("operator", "ann", "--out", f"{out}/other", federation=federation)[0] == 0


@pytest.mark.parametrize("name", ["../ann", "", "a b", "a" * 64, "-a"])
def test_a_name_that_is_none_makes_no_file(federation: Path, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert call("operator", "--out", str(tmp_path / "o"), "--", name, federation=federation)[0] != 0
    assert sorted(tmp_path.rglob("*")) == before


def test_files_that_cannot_be_written_leave_nobody_registered(federation: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, why = call("operator", "ann", "--out", str(tmp_path / "file" / "o"), federation=federation)
    assert code != 0
    assert "cannot be written" in why
    assert opened(federation).registry().operators == {}


def test_a_node_and_an_operator_of_one_name_are_revoked_apart(federation: Path, tmp_path: Path) -> None:
    assert call("operator", "site", "--out", str(tmp_path), federation=federation)[0] == 0
    assert "no operator 'other'" in call("revoke", "other", "--operator", federation=federation)[2]
    assert call("revoke", "site", federation=federation)[0] == 0
    assert "site" in opened(federation).registry().operators
    assert call("revoke", "site", "--operator", federation=federation)[0] == 0
    assert len(opened(federation).registry().revoked) == 2


async def test_a_revoked_operator_reads_no_page_and_no_open_stream(federation: Path, tmp_path: Path) -> None:
    long_run(tmp_path / "runs" / "a", rounds=2, clients=6, nodes=2)
    events = tmp_path / "runs" / "a" / "events.jsonl"
    for name in ("ann", "bob"):
        assert call("operator", name, "--out", str(tmp_path), federation=federation)[0] == 0
    settings = WebSettings(listen="0.0.0.0:0", federation=federation)
    certify(settings)
    async with served(tmp_path / "runs", settings) as address:
        base = address.replace("0.0.0.0", "127.0.0.1")
        ann, bob = (
            httpx.AsyncClient(verify=holder(federation, tmp_path / f"{name}.pem"), base_url=base)
            for name in ("ann", "bob")
        )
        async with ann, bob:
            assert (await ann.get("runs.json")).status_code == 200
            where = events.stat().st_size
            path = f"events?run=a&from={where}"
            async with ann.stream("GET", path) as of_ann, bob.stream("GET", path) as of_bob:
                assert {of_ann.status_code, of_bob.status_code} == {200}
                assert call("revoke", "ann", "--operator", federation=federation)[0] == 0
                with events.open("a") as file:
                    file.write(events.read_text().splitlines()[-1] + "\n")
                assert b'"events"' not in b"".join([part async for part in of_ann.aiter_bytes()])
                async for part in of_bob.aiter_bytes():
                    if b'"events"' in part:
                        break
            refused = await ann.get("runs.json")
            assert refused.status_code == 403
            assert "the certificate of operator ann was revoked" in refused.text
            assert (await bob.get("runs.json")).status_code == 200


async def test_a_revoked_operator_reads_no_figures(federation: Path, tmp_path: Path) -> None:
    assert call("operator", "ann", "--out", str(tmp_path), federation=federation)[0] == 0
    settings = WebSettings(listen="0.0.0.0:0", federation=federation)
    certify(settings)
    tls, ann = load(settings.tls_files), holder(federation, tmp_path / "ann.pem")
    async with door.opened("0.0.0.0:0", tls, door.pages_of(State(), 60.0), federation=federation) as address:
        port = int(address.rpartition(":")[2])
        assert status(await said(port, asked("/metrics"), ann)) == "200 OK"
        assert call("revoke", "ann", "--operator", federation=federation)[0] == 0
        told = await said(port, asked("/metrics"), ann)
    assert status(told) == "403 Forbidden"
    assert "fedgsp_" not in told
