"""A log that somebody has written without a key, a CA that is none, and a run that ends while its log is verified."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedgsp.errors import ConfigError, DataError, RunError
from fedgsp.identity import node
from fedgsp.security.chained import BEGIN, BrokenError, hash_of, line_of
from fedgsp.security.signing import Signer
from tests.support.certificates import Authority
from top_server import audit
from top_server.cli import app
from top_server.record.directory import RunDirectory
from top_server.resume.audit import opened

STARTED, FINISHED = '{"event": "run_started", "run": "run"}\n', '{"event": "run_finished"}\n'


@dataclass(frozen=True)
class Played:
    """The directory of a run that is finished, and its CA."""

    directory: RunDirectory
    ca: Path

    def command(self, ca: Path) -> Any:
        return CliRunner().invoke(app, ["audit", str(self.directory.path), "--tls-ca", str(ca)])


@pytest.fixture
def played(tmp_path: Path) -> Played:
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    authority = Authority(tmp_path)
    top, own = authority.issue("top"), authority.issue("n0", identity=node("n0"))
    directory.config.write_text('tls_ca = "ca.pem"\n')
    directory.events.write_text(STARTED + FINISHED)
    directory.history.write_text('{"round": 1}\n')
    signer = Signer(top.key.read_bytes(), top.cert.read_bytes())
    with opened(directory, "run", signer, authority.ca.read_bytes(), resumed=False) as log:
        log.note("admitted", node="n0", caller="node n0", certificate=own.cert.read_text(), clients="0")
        log.seal("run", 1)
        log.close(True, "the run is finished")
    return Played(directory, authority.ca)


def strip(path: Path) -> None:
    """Writes a log as if the run had had no TLS, with another client. No key is needed for that."""
    made, head = list[bytes](), BEGIN
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        fields = {name: value for name, value in json.loads(line).items() if name not in ("line", "before")}
        fields |= {name: None for name in ("certificate", "signature") if name in fields}
        fields |= {"clients": [99]} if "clients" in fields else {}
        made.append(line_of(number, head, fields))
        head = hash_of(made[-1])
    path.write_bytes(b"".join(made))


def test_a_log_without_its_signatures_is_not_that_of_a_run_with_tls(played: Played) -> None:
    assert played.command(played.ca).exit_code == 0
    strip(played.directory.audit)
    result = played.command(played.ca)
    assert isinstance(result.exception, DataError)
    assert "line 1: nobody has signed it, although --tls-ca was given" in str(result.exception)
    with pytest.raises(BrokenError, match=r"config\.toml says that the run had TLS"):
        audit.verify(played.directory)


@pytest.mark.parametrize(
    "content", [b"", b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_ca_that_is_no_certificate_is_not_the_fault_of_the_log(
    played: Played, tmp_path: Path, content: bytes
) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_bytes(content)
    result = played.command(junk)
    assert isinstance(result.exception, ConfigError)
    assert f"--tls-ca {junk} cannot be read: it has no certificate in PEM" in str(result.exception)


@pytest.mark.parametrize("late", range(4))
def test_a_run_may_finish_while_its_log_is_verified(
    played: Played, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """The last lines of the log, and then that of events.jsonl, come when the verification is under way."""
    directory, ca, read = played.directory, played.ca.read_bytes(), audit.read
    lines = directory.audit.read_bytes().splitlines(keepends=True)
    directory.audit.write_bytes(b"".join(lines[: len(lines) - late]))
    directory.events.write_text(STARTED)

    def meanwhile(*given: Any) -> Any:
        found = read(*given)
        directory.audit.write_bytes(b"".join(lines))
        directory.events.write_text(STARTED + FINISHED)
        return found

    monkeypatch.setattr(audit, "read", meanwhile)
    found = audit.verify(directory, ca)
    assert found.whole == (late == 0)
    assert ("lines after" in "\n".join(audit.report(found, trusted=True))) == (late > 0)
    assert audit.verify(directory, ca).whole


@pytest.mark.parametrize("name", ["events.jsonl", "history.jsonl", "config.toml"])
def test_a_log_that_was_cut_after_a_seal_is_not_hidden_by_the_loss_of_another_file(played: Played, name: str) -> None:
    lines = played.directory.audit.read_bytes().splitlines(keepends=True)
    played.directory.audit.write_bytes(b"".join(lines[:3]))
    (played.directory.path / name).unlink()
    result = played.command(played.ca)
    assert isinstance(result.exception, DataError | RunError)
    assert (name in str(result.exception)) is isinstance(result.exception, DataError)


def test_a_log_without_an_end_is_reported_and_does_not_count_as_good(played: Played) -> None:
    """Somebody without a key can cut the log after a seal, and take the end out of events.jsonl."""
    lines = played.directory.audit.read_bytes().splitlines(keepends=True)
    played.directory.audit.write_bytes(b"".join(lines[:3]))
    played.directory.events.write_text(STARTED)
    result = played.command(played.ca)
    assert "1 round, not finished" in result.output
    assert isinstance(result.exception, RunError)
    assert result.exception.exit_code == 6
    assert "has no end" in str(result.exception)


ORDERED = '"what": "ordered", "run": "run", "program": "relay", "chained": true, "members": [], "start": null'
LINES = {
    "a serial number": f'{ORDERED}, "group": 0, "round": 1, "serial": NUMBER',
    "a round of an order": f'{ORDERED}, "group": 0, "serial": 1, "round": NUMBER',
    "a round of a seal": '"what": "sealed", "run": "run", "signature": null, "round": NUMBER',
}


@pytest.mark.parametrize("number", ["1e999", "-1e999", "-1", "1.5", "true", '"1"', "null", "[]", "9" * 5000])
@pytest.mark.parametrize("place", LINES)
def test_what_is_no_whole_number_breaks_its_line(played: Played, place: str, number: str) -> None:
    strip(played.directory.audit)
    played.directory.config.write_text("")
    first, second, *_ = played.directory.audit.read_bytes().splitlines(keepends=True)
    line = f'{{"line": 3, "before": "{hash_of(second)}", {LINES[place].replace("NUMBER", number)}}}\n'
    played.directory.audit.write_bytes(first + second + line.encode())
    with pytest.raises(BrokenError) as caught:
        audit.verify(played.directory)
    assert caught.value.number == 3


@pytest.mark.parametrize("number", ["1e999", "1.5", '"1"', "null", "[]"])
def test_a_row_of_the_history_whose_round_is_no_number_is_an_error(played: Played, number: str) -> None:
    played.directory.history.write_text(f'{{"round": 1}}\n{{"round": {number}}}\n')
    with pytest.raises(DataError, match=r"history\.jsonl: .* is not a whole number"):
        audit.verify(played.directory)


def verified(directory: RunDirectory) -> None:
    audit.verify(directory)


def continued(directory: RunDirectory) -> None:
    with opened(directory, "run", None, None, resumed=True):
        pass


@pytest.mark.timeout(20)
@pytest.mark.parametrize("reader", [verified, continued])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_log_that_is_no_regular_file_is_an_error(
    played: Played, make: Callable[[Path], None], reader: Callable[[RunDirectory], None]
) -> None:
    """Opening a FIFO would wait for ever, and /dev/zero never ends."""
    played.directory.audit.unlink()
    make(played.directory.audit)
    with pytest.raises((ConfigError, DataError), match=r"audit\.jsonl cannot be read: (it is not|Is a directory)"):
        reader(played.directory)
