"""The audit log of a run that is resumed goes on, if what is there holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgsp.chained import BrokenError, ChainedFile
from fedgsp.errors import ConfigError, DataError
from fedgsp.signing import Signer
from tests.support.certificates import Authority
from top_server import audit
from top_server.record.directory import RunDirectory
from top_server.resume.audit import opened


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "run").mkdir()
    found = RunDirectory(tmp_path / "run")
    found.config.write_text("")
    return found


def begun(directory: RunDirectory, signer: Signer | None, ca: bytes | None) -> None:
    """A round, and a top server that is killed while it writes."""
    with opened(directory, "run", signer, ca, resumed=False) as log:
        log.note("refused", node="stranger")
        log.seal("run", 1)
        log.note("refused", node="another")
    with directory.audit.open("ab") as file:
        file.write(b'{"line": 5, "bef')


def test_a_resumed_run_goes_on_with_its_log(directory: RunDirectory, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files, ca = authority.issue("top"), authority.ca.read_bytes()
    top = Signer(files.key.read_bytes(), files.cert.read_bytes())
    begun(directory, top, ca)
    found = audit.verify(directory, ca)
    assert (found.torn, found.lines, found.sealed) == (True, 4, 3)
    assert "lines after 3 could be missing" in "\n".join(audit.report(found, trusted=True))
    with opened(directory, "run", top, ca, resumed=True) as log:
        log.close(2, True, "the run is finished")
        log.note("refused", node="too late")
    found = audit.verify(directory, ca)
    assert (found.torn, found.lines, found.sealed, found.whats["resumed"]) == (False, 7, 7, 1)


def test_a_log_that_was_changed_is_not_continued(directory: RunDirectory, tmp_path: Path) -> None:
    begun(directory, None, None)
    text = directory.audit.read_bytes()
    directory.audit.write_bytes(text.replace(b"stranger", b"nobody..", 1))
    with pytest.raises(DataError, match="line 3: it does not continue the line before"):
        opened(directory, "run", None, None, resumed=True).__enter__()
    assert len(directory.audit.read_bytes()) == len(text)


def test_a_signed_log_needs_a_key_to_go_on(directory: RunDirectory, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("top")
    begun(directory, Signer(files.key.read_bytes(), files.cert.read_bytes()), authority.ca.read_bytes())
    with pytest.raises(ConfigError, match="the audit log of this run is signed"):
        opened(directory, "run", None, None, resumed=True).__enter__()


def test_the_begin_of_a_log_that_was_lost_is_missed(directory: RunDirectory) -> None:
    with opened(directory, "run", None, None, resumed=True):
        pass
    with pytest.raises(BrokenError, match="line 1: the log begins with a resumed run"):
        audit.verify(directory)


def test_a_log_without_tls_says_that_nothing_is_signed(directory: RunDirectory) -> None:
    with opened(directory, "run", None, None, resumed=False) as log:
        log.note("admitted", node="n0", caller="local user", certificate=None)
        log.close(1, True, "the run is finished")
    assert "unsigned" in "\n".join(audit.check(directory.path, None))
    with ChainedFile(directory.audit) as file:
        file.append({"what": "admitted", "node": "n1", "caller": "local user", "certificate": None})
    with pytest.raises(BrokenError, match="the run had finished"):
        audit.verify(directory)
