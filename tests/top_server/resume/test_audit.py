"""The audit log of a run that is resumed goes on, if what is there holds."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedgsp.errors import ConfigError, DataError
from fedgsp.identity import node
from fedgsp.security.chained import BrokenError, ChainedFile
from fedgsp.security.receipts import Statement
from fedgsp.security.signing import Signer
from tests.support.certificates import Authority
from top_server import audit
from top_server.record.audit import AuditLog
from top_server.record.directory import RunDirectory
from top_server.resume.audit import opened

STARTED = '{"event": "run_started", "run": "run"}\n'


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "run").mkdir()
    found = RunDirectory(tmp_path / "run")
    for path in (found.config, found.events, found.history):
        path.write_text("")
    found.events.write_text(STARTED)
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
        log.close(True, "the run is finished")
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


@dataclass(frozen=True)
class Federation:
    """A CA, the top server, and a node."""

    ca: bytes
    top: Signer
    node: str


@pytest.fixture
def old(tmp_path: Path) -> Federation:
    authority = Authority(tmp_path)
    top, own = authority.issue("top"), authority.issue("n0", identity=node("n0"))
    signer = Signer(top.key.read_bytes(), top.cert.read_bytes())
    return Federation(authority.ca.read_bytes(), signer, own.cert.read_text())


def admits(log: AuditLog, certificate: str) -> None:
    log.note("admitted", node="n0", caller="node n0", certificate=certificate, clients="0")


def moved(tmp_path: Path, key: bytes) -> Federation:
    """Another CA, which has signed the request of a top server with this key."""
    authority = Authority(tmp_path, "new")
    top, own = authority.issue("top", key=key), authority.issue("n0", identity=node("n0"))
    return Federation(authority.ca.read_bytes(), Signer(key, top.cert.read_bytes()), own.cert.read_text())


def test_a_run_goes_on_with_a_new_ca(directory: RunDirectory, tmp_path: Path, old: Federation) -> None:
    key = (tmp_path / "ca-top.key").read_bytes()
    with opened(directory, "run", old.top, old.ca, resumed=False) as log:
        admits(log, old.node)
        log.seal("run", 1)
        log.close(False, "the top server stopped")
    new = moved(tmp_path, key)
    for _ in range(2):
        with opened(directory, "run", new.top, new.ca, resumed=True) as log:
            admits(log, new.node)
            log.close(False, "the top server stopped")
    assert audit.verify(directory, old.ca + new.ca).rounds == 1
    for authority, line in ((new.ca, 1), (old.ca, 6)):
        with pytest.raises(BrokenError, match="does not fit --tls-ca") as caught:
            audit.verify(directory, authority)
        assert caught.value.number == line


def test_a_foreign_certificate_counts_only_under_a_seal_of_the_own_key(
    directory: RunDirectory, tmp_path: Path, old: Federation
) -> None:
    """A thief has certificates of a CA of his own, and no key of the top server."""
    thief = moved(tmp_path, (tmp_path / "ca-n0.key").read_bytes())
    with opened(directory, "run", thief.top, thief.ca, resumed=False) as log:
        log.close(False, "the top server stopped")
    with pytest.raises(DataError, match="line 1: the certificate of top-server does not fit --tls-ca"):
        opened(directory, "run", old.top, old.ca, resumed=True).__enter__()
    directory.audit.unlink()
    with opened(directory, "run", old.top, old.ca, resumed=False) as log:
        log.seal("run", 1)
        admits(log, thief.node)
    with pytest.raises(DataError, match="line 3: the certificate of node n0 does not fit --tls-ca"):
        opened(directory, "run", old.top, old.ca, resumed=True).__enter__()


def test_a_log_that_nobody_signed_is_not_continued_with_tls(directory: RunDirectory, old: Federation) -> None:
    begun(directory, None, None)
    with pytest.raises(DataError, match="line 1: nobody has signed it"):
        opened(directory, "run", old.top, old.ca, resumed=True).__enter__()


def test_the_last_seal_names_the_last_round_that_ended(directory: RunDirectory, old: Federation) -> None:
    directory.history.write_text('{"round": 1}\n{"round": 2}\n')
    for resumed in (False, True):
        with opened(directory, "run", old.top, old.ca, resumed) as log:
            log.seal("run.alone", 20)
            if not resumed:
                log.seal("run", 1)
            log.close(resumed, "the end")
        assert audit.verify(directory, old.ca).rounds == 1
    directory.events.write_text(STARTED + '{"event": "run_finished"}\n')
    with pytest.raises(BrokenError, match=r"history\.jsonl has round 2"):
        audit.verify(directory, old.ca)


def test_a_certificate_may_expire_between_a_connection_and_its_line(directory: RunDirectory, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    top = authority.issue("top", days=30)
    late = authority.issue("n0", identity=node("n0"), days=-1).cert.read_text()
    now = dt.datetime.now(dt.UTC)
    signer = Signer(top.key.read_bytes(), top.cert.read_bytes())
    for days, good in ((2, True), (0.5, False)):
        times = [now, now - dt.timedelta(days=days)]
        with AuditLog(directory.audit, "run", signer, now=lambda _, times=times: times.pop()) as log:  # type: ignore[misc]
            log.note("began", run="run", caller="top-server", certificate=signer.certificate.decode(), settings="")
            admits(log, late)
        with directory.audit.open("rb") as file, contextlib.nullcontext() if good else pytest.raises(BrokenError):
            audit.read(file, authority.ca.read_bytes())
        directory.audit.unlink()


def test_the_log_of_an_extended_run_goes_on_after_its_end(directory: RunDirectory) -> None:
    with opened(directory, "run", None, None, resumed=False) as log:
        log.seal("run", 2)
        log.close(True, "the run is finished")
    with opened(directory, "run", None, None, resumed=True) as log:  # refused: a node lacks what it kept
        log.note("refused", node="stranger")
        log.close(False, "no node came")
    assert audit.verify(directory).whole
    with opened(directory, "run", None, None, resumed=True) as log:
        log.note("extended", rounds=4)
        assert not audit.verify(directory).finished
        log.seal("run", 4)
        log.close(True, "the run is finished")
    found = audit.verify(directory)
    assert (found.whole, found.rounds, found.whats["resumed"]) == (True, 4, 2)


@pytest.mark.parametrize(
    ("finished", "rounds", "what"),
    [(False, 4, "had not finished"), (True, 2, "has more rounds"), (True, None, "wrong")],
)
def test_only_a_finished_run_is_extended_and_only_by_more_rounds(
    directory: RunDirectory, finished: bool, rounds: int | None, what: str
) -> None:
    with opened(directory, "run", None, None, resumed=False) as log:
        log.seal("run", 2)
        log.close(finished, "the end")
    with opened(directory, "run", None, None, resumed=True) as log:
        log.note("extended", rounds=rounds)
    with pytest.raises(BrokenError, match=what):
        audit.verify(directory)


def test_the_begin_of_a_log_that_was_lost_is_missed(directory: RunDirectory) -> None:
    with AuditLog(directory.audit, "run", None) as log:
        log.note("resumed", run="run", caller="local user", certificate=None, settings="")
    with pytest.raises(BrokenError, match="line 1: the log begins with a resumed run"):
        audit.verify(directory)


def test_a_log_without_tls_says_that_nothing_is_signed(directory: RunDirectory) -> None:
    with opened(directory, "run", None, None, resumed=False) as log:
        log.note("admitted", node="n0", caller="local user", certificate=None)
        log.close(True, "the run is finished")
    assert "unsigned" in "\n".join(audit.check(directory.path, None))
    with ChainedFile(directory.audit) as file:
        file.append({"what": "admitted", "node": "n1", "caller": "local user", "certificate": None})
    with pytest.raises(BrokenError, match="the run had finished"):
        audit.verify(directory)


def test_a_relay_may_go_on_after_a_top_server_that_stopped_in_its_middle(directory: RunDirectory) -> None:
    """A node may still have what it made: the relay then goes on from there."""
    start, made = ("run/global", "aa"), [(f"run/1/0/relay/{position}.0", f"b{position}") for position in range(3)]

    def ordered(log: AuditLog, serial: int, finished: int) -> None:
        members = [[client, "n0"] for client in range(3)]
        told = {"program": "relay", "chained": True, "manager": "m0", "members": members, "own_starts": []}
        log.note(
            "ordered", run="run", round=1, group=0, serial=serial, finished=finished, start=start, reveal=None, **told
        )

    def hop(log: AuditLog, serial: int, position: int) -> None:
        before = made[position - 1] if position else start
        said = Statement("run", 1, "train", 0, position, 0, serial, position, "n0", *before, *made[position], "", 5)
        told = {"receipt": None, "certificate": None, "via": None, "bytes": 1}
        log.note("made", statement=dataclasses.asdict(said), **told)

    with opened(directory, "run", None, None, resumed=False) as log:
        log.note("admitted", node="n0", caller="", certificate=None, clients="0-2", address=None, task_digest=None)
        ordered(log, 1, 0)
        hop(log, 1, 0)
        log.close(False, "it was stopped")
    with opened(directory, "run", None, None, resumed=True) as log:
        ordered(log, 2, 1)
        hop(log, 2, 1)
        hop(log, 2, 2)
        log.seal("run", 1)
    with directory.audit.open("rb") as file:
        found = audit.read(file)
    assert (found.rounds, found.whats["made"]) == (1, 3)
