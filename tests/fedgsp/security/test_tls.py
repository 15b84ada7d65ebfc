from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp.identity import TOP_SERVER, node
from fedgsp.security.tls import Tls, TlsFiles, handshake_failure, load, tls_files
from tests.support.certificates import SERVERS, Authority

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tls.md"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def refused(files: TlsFiles) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(files)
    assert caught.value.remedy
    return caught.value


def loaded(files: TlsFiles) -> Tls:
    tls = load(files)
    assert tls is not None
    return tls


def test_no_files_are_plain_connections() -> None:
    assert tls_files(None, None, None) is None
    assert load(None) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("a", "--tls-ca without --tls-cert and --tls-key"),
        ("ck", "--tls-cert and --tls-key without --tls-ca"),
        ("ac", "--tls-ca and --tls-cert without --tls-key"),
    ],
)
def test_some_of_the_flags_alone_are_refused_by_name(given: str, said: str) -> None:
    path = Path("x.pem")
    with pytest.raises(ConfigError, match=f"^{said}; give all three"):
        tls_files(*(path if letter in given else None for letter in "ack"))


def test_files_that_belong_together_are_loaded(authority: Authority) -> None:
    files = authority.issue()
    tls = loaded(files)
    assert (tls.ca, tls.cert, tls.key) == tuple(path.read_bytes() for path in (files.ca, files.cert, files.key))
    assert "PRIVATE" not in repr(tls)


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
def test_a_file_that_cannot_be_read_is_named(authority: Authority, tmp_path: Path, name: str) -> None:
    for path, why in ((tmp_path / "none.pem", "No such file"), (tmp_path, "Is a directory")):
        changed: dict[str, Any] = {name: path}
        error = refused(dataclasses.replace(authority.issue(), **changed))
        assert error.what.startswith(f"--tls-{name} {path} cannot be read: {why}")


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
@pytest.mark.parametrize(
    "content", [b"", b"\x30\x82\x01\xff", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_file_that_is_not_pem_is_named(authority: Authority, name: str, content: bytes) -> None:
    files = authority.issue()
    getattr(files, name).write_bytes(content)
    assert refused(files).what.startswith(f"--tls-{name} {getattr(files, name)} holds no ")


def test_a_key_of_another_certificate_is_refused(authority: Authority) -> None:
    files = dataclasses.replace(authority.issue(), key=authority.issue("other").key)
    assert refused(files).what == f"--tls-key {files.key} is not the key of --tls-cert {files.cert}"


def test_an_encrypted_key_is_refused_without_asking_for_its_password(authority: Authority) -> None:
    assert "is encrypted" in refused(authority.issue(password=b"secret")).what


def test_a_certificate_of_another_ca_is_refused(authority: Authority, tmp_path: Path) -> None:
    files = dataclasses.replace(authority.issue(), ca=Authority(tmp_path, "foreign").ca)
    assert f"--tls-cert {files.cert} is not trusted by --tls-ca {files.ca}" in refused(files).what


def test_an_expired_certificate_is_refused(authority: Authority) -> None:
    error = refused(authority.issue(days=-1))
    assert "has expired" in error.what
    assert "issue a new certificate" in error.remedy


@pytest.mark.parametrize(
    ("dates", "source", "remedy"),
    [
        ({"begins": 1, "days": 9}, "", "set the clock of this machine: it says 20"),
        ({"begins": 1, "days": 9}, "--identity", "set the clock of this machine: it says 20"),
        ({"begins": 1, "days": 9}, "--federation", "set the clock of this machine: it says 20"),
        (
            {"days": -1},
            "--identity",
            "ask for `top-server revoke` of this node and a new invitation, then run: fedgsp",
        ),
        ({"days": -1}, "--federation", "restore this folder from a copy"),
    ],
)
def test_a_certificate_that_is_not_valid_now_has_the_remedy_of_its_reason(
    authority: Authority, dates: dict[str, Any], source: str, remedy: str
) -> None:
    assert refused(dataclasses.replace(authority.issue(**dates), source=source)).remedy.startswith(remedy)


def test_a_certificate_for_servers_alone_is_refused(authority: Authority) -> None:
    assert "extendedKeyUsage = serverAuth, clientAuth" in refused(authority.issue(usage=SERVERS)).remedy


def test_a_certificate_covers_its_names_and_no_others(authority: Authority) -> None:
    tls = loaded(authority.issue(hosts=["127.0.0.1", "::1", "fe80::1", "top.example.org", "*.nodes.example.org"]))
    for host in ("127.0.0.1", "[::1]", "[fe80::1%eth0]", "top.example.org", "a.nodes.example.org"):
        tls.check_covers(host, "where it is")
    for host, entry in (
        ("127.0.0.2", "IP:127.0.0.2"),
        ("[::2]", "IP:::2"),
        ("localhost", "DNS:localhost"),
        ("a.b.nodes.example.org", "DNS:a.b.nodes.example.org"),
    ):
        with pytest.raises(ConfigError, match=r"does not cover .*, where it is; ") as caught:
            tls.check_covers(host, "where it is")
        assert f"issue a certificate with {entry} in" in caught.value.remedy


@pytest.mark.parametrize("host", [".foo", "a..b", "a" * 64])
def test_what_is_no_host_name_is_told(authority: Authority, host: str) -> None:
    with pytest.raises(ConfigError, match="where it is, is not a host name"):
        loaded(authority.issue(hosts=["127.0.0.1"])).check_covers(host, "where it is")


def test_errors_that_are_not_about_tls_are_left_alone() -> None:
    for details in ("failed to connect to all addresses; last error: Connection refused", "Socket closed", ""):
        assert handshake_failure(details) is None


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
def test_the_recipe_of_the_page_makes_files_that_can_be_used(tmp_path: Path) -> None:
    recipe = "\n".join(re.findall(r"^(?:openssl|echo) .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    subprocess.run(["sh", "-e", "-c", recipe], cwd=tmp_path, check=True, capture_output=True)
    tls = loaded(TlsFiles(tmp_path / "ca.pem", tmp_path / "top.pem", tmp_path / "top.key"))
    for host in ("top.example.org", "127.0.0.1"):
        tls.check_covers(host, "where it is")
    assert tls.identity == TOP_SERVER
    of_node = loaded(TlsFiles(tmp_path / "ca.pem", tmp_path / "node.pem", tmp_path / "node.key"))
    assert of_node.identity == node("hungarian")
