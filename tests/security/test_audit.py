"""The log of a real run of two sites: whatever is changed in it afterwards is found, and named by its line."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgsp.errors import DataError
from fedgsp.identity import node
from fedgsp.security.chained import BrokenError, links
from fedgsp.security.receipts import Statement
from fedgsp.security.signing import Signer, fingerprint
from tests.support.audited import Line, Malicious, Played, exchanged, hops, of_kind, play, rechained
from tests.support.certificates import Authority
from top_server import audit
from top_server.cli import app
from top_server.record.directory import RunDirectory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(tmp_path_factory.mktemp("audited"))


def test_the_log_of_a_run_holds_and_tells_who_took_part(played: Played) -> None:
    found = audit.verify(played.directory, played.ca)
    assert (found.finished, found.rounds, found.last, found.sealed) == (True, 2, "sealed", len(played.lines))
    assert found.receipts == sum(found.made.values()) == 18  # two models to begin with, and twice eight trainings
    assert found.shown.keys() == {"top-server", "node n0", "node n1"}
    counts = {what: len(of_kind(played.lines, what)) for what in ("began", "admitted", "left", "finished", "sealed")}
    assert counts == {"began": 1, "admitted": 2, "left": 2, "finished": 1, "sealed": 3}
    readers = {line["reader"] for line in played.lines if line["what"] == "fetched"}
    assert {"node n0", "node n1", "top-server"} >= readers >= {"node n1", "top-server"}
    for path in (played.directory.audit, played.folder / "s0" / "receipts.jsonl"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_the_command_reports_and_fails_with_the_line(played: Played, tmp_path: Path) -> None:
    good = CliRunner().invoke(app, ["audit", str(played.directory.path), "--tls-ca", str(played.authority.ca)])
    assert good.exit_code == 0
    assert "18 training results, 18 receipts, and all of them hold" in good.output
    assert "compare" not in good.output
    untold = CliRunner().invoke(app, ["audit", str(played.directory.path)])
    assert f"{fingerprint(played.top.certificate)} (compare it)" in untold.output
    lines = played.directory.audit.read_bytes().splitlines(keepends=True)
    bad = played.copied(tmp_path, [*lines[:4], *lines[5:]])
    result = CliRunner().invoke(app, ["audit", str(bad.path)])
    assert isinstance(result.exception, DataError)
    assert result.exception.exit_code == 4
    assert "line 5: it says that it is line 6" in str(result.exception)
    with pytest.raises(DataError, match="cannot be read"):
        audit.verify(RunDirectory(tmp_path / "nowhere"))


def cut(lines: list[Line], count: int) -> list[Line]:
    return lines[:-count]


PLAIN: dict[str, tuple[Callable[[list[Line]], list[Line]], int]] = {
    "a line changed": (lambda lines: [*lines[:9], {**lines[9], "time": "2020-01-01T00:00:00Z"}, *lines[10:]], 11),
    "a line removed": (lambda lines: [*lines[:9], *lines[10:]], 10),
    "a line inserted": (lambda lines: [*lines[:9], lines[8], *lines[9:]], 10),
    "two lines exchanged": (lambda lines: exchanged(lines, 9, 20), 10),
    "the first line removed": (lambda lines: lines[1:], 1),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_lines_that_were_changed_by_hand_are_named(played: Played, tmp_path: Path, kind: str) -> None:
    change, number = PLAIN[kind]
    raw = [json.dumps(line).encode() + b"\n" for line in change(copy.deepcopy(played.lines))]
    assert played.broken(tmp_path, raw)[0] == number


@pytest.mark.parametrize("count", [1, 2, 3, 30])
def test_a_log_that_was_cut_off_is_not_the_whole_log(played: Played, tmp_path: Path, count: int) -> None:
    kept = cut(played.lines, count)
    for torn in (b"", b'{"line":'):
        number, why = played.broken(tmp_path, [*rechained(kept), torn])
        assert number == len(kept) + 1
        assert why.startswith("lines are missing at the end: ")


def test_whoever_makes_all_hashes_anew_lacks_the_key_of_the_seals(played: Played, tmp_path: Path) -> None:
    """A thief of the directory, without the key of the top server."""
    first, *_, last = of_kind(played.lines, "sealed")
    for change, sealed in (
        (lambda lines: [*lines[:9], {**lines[9], "time": "2020-01-01T00:00:00Z"}, *lines[10:]], first),
        (lambda lines: [line for line in lines if line["what"] != "fetched"], None),
        (lambda lines: [*lines[:-3], {"time": lines[-1]["time"], "what": "refused", "node": "x"}, *lines[-3:]], None),
        (lambda lines: exchanged(lines, first, last), first),
        # One seal in the place of another.
        (lambda lines: [*lines[:first], {**lines[last], "round": 1}, *lines[first + 1 :]], first),
    ):
        made = change(copy.deepcopy(played.lines))
        number, why = played.broken(tmp_path, rechained(made))
        assert "the top server has not signed the lines before it" in why
        assert made[number - 1]["what"] == "sealed"
        assert sealed is None or number == sealed + 1
    unsigned = [{**line, "signature": None} if line["what"] == "sealed" else line for line in played.lines]
    assert played.broken(tmp_path, rechained(unsigned)) == (first + 1, "it has no signature")


def test_a_thief_who_begins_with_a_certificate_of_his_own_is_not_the_top_server(
    played: Played, tmp_path: Path
) -> None:
    (tmp_path / "ca").mkdir()
    files = Authority(tmp_path / "ca").issue("top")
    thief = Signer(files.key.read_bytes(), files.cert.read_bytes())
    lines = copy.deepcopy(played.lines)
    lines[0]["certificate"] = thief.certificate.decode()
    forged = rechained(lines, thief, lines[0]["run"])
    number, why = played.broken(tmp_path, forged)
    assert (
        number,
        "does not fit --tls-ca: it was not issued by this CA, but by one of the same name (give the ca.pem" in why,
    ) == (1, True)
    # Without the CA, a person sees another fingerprint than that of the top server.
    found = audit.verify(played.copied(tmp_path, forged))
    assert found.shown["top-server"] == {fingerprint(thief.certificate)} != {fingerprint(played.top.certificate)}


def test_a_node_can_not_sign_for_the_top_server(played: Played, tmp_path: Path) -> None:
    files = played.authority.issue("spy", identity=node("spy"))
    spy = Signer(files.key.read_bytes(), files.cert.read_bytes())
    lines = copy.deepcopy(played.lines)
    lines[0]["certificate"] = spy.certificate.decode()
    number, why = played.broken(tmp_path, rechained(lines, spy, lines[0]["run"]))
    assert (number, why) == (1, "its certificate is that of node spy, not of a top server")


def test_the_log_of_another_run_is_not_that_of_this_one(played: Played, tmp_path: Path) -> None:
    directory = played.copied(tmp_path, played.directory.audit.read_bytes().splitlines(keepends=True))
    events = directory.events.read_text().replace(played.lines[0]["run"], "0ther")
    directory.events.write_text(events)
    with pytest.raises(BrokenError, match=r"the log is of run .*, and events.jsonl of '0ther'"):
        audit.verify(directory, played.ca)


@pytest.fixture
def malicious(played: Played, tmp_path: Path) -> Malicious:
    return Malicious(played, tmp_path)


def test_the_seals_of_a_malicious_top_server_are_good(malicious: Malicious, played: Played, tmp_path: Path) -> None:
    """So what the tests below find is found by the receipts of the nodes."""
    directory = played.copied(tmp_path, rechained(malicious.lines, played.top, malicious.run))
    assert audit.verify(directory, played.ca).finished


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("digest", "ab" * 32),
        ("start_digest", "ab" * 32),
        ("samples", 100_000),
        ("update_digest", "ab" * 32),
        ("model", "another"),
    ],
)
def test_a_top_server_cannot_change_what_a_node_stated(malicious: Malicious, name: str, value: object) -> None:
    place = hops(malicious.lines, 1, 0)[1]
    malicious.lines[place]["statement"][name] = value
    number, why = malicious.caught()
    assert number == place + 1
    assert "is not the signature of node" in why


def test_a_receipt_is_not_that_of_another_order(malicious: Malicious) -> None:
    for some, other in zip(hops(malicious.lines, 1, 0), hops(malicious.lines, 2, 0), strict=False):
        lines = malicious.lines = copy.deepcopy(malicious.lines)
        lines[some]["receipt"], lines[other]["receipt"] = lines[other]["receipt"], lines[some]["receipt"]
        assert malicious.caught()[0] == some + 1
        lines[some]["receipt"], lines[other]["receipt"] = lines[other]["receipt"], lines[some]["receipt"]


def test_a_top_server_cannot_invent_a_hop(malicious: Malicious, played: Played) -> None:
    place = hops(malicious.lines, 1, 0)[-1]
    true = malicious.lines[place]
    said = Statement.read(true["statement"])
    invented = dataclasses.replace(said, attempt=7, position=said.position + 1, digest="ab" * 32)
    own = played.top.sign(invented.text).hex()
    for receipt, certificate in ((true["receipt"], true["certificate"]), (own, true["certificate"]), (None, None)):
        line = {**true, "statement": dataclasses.asdict(invented), "receipt": receipt, "certificate": certificate}
        malicious.lines[place + 1 : place + 1] = [line]
        number, why = malicious.caught()
        assert (number, "signature of node" in why or "has shown no certificate" in why) == (place + 2, True)
        del malicious.lines[place + 1]
    # With its own certificate in the place of the node's, it is not the node.
    admitted = next(n for n in of_kind(malicious.lines, "admitted") if malicious.lines[n]["node"] == said.node)
    malicious.lines[admitted]["certificate"] = malicious.lines[0]["certificate"]
    number, why = malicious.caught()
    assert (number, why) == (admitted + 1, f"the certificate of node {said.node} is that of top-server")


def test_a_hop_cannot_be_told_twice(malicious: Malicious) -> None:
    place = hops(malicious.lines, 1, 0)[0]
    malicious.lines[place + 1 : place + 1] = [malicious.lines[place]]
    assert malicious.caught() == (place + 2, f"client {_client(malicious, place)} answers an order that was answered")
    seal = of_kind(malicious.lines, "sealed")[0]
    malicious.lines[seal + 1 : seal + 1] = [malicious.lines[place]]
    del malicious.lines[place + 1]
    assert "nobody ordered what client" in malicious.caught()[1]


def test_a_hop_that_is_left_out_is_missed_by_the_next_one(malicious: Malicious) -> None:
    first, second, *_ = hops(malicious.lines, 1, 0)
    del malicious.lines[first]
    assert malicious.caught() == (second, "there is no hop 0 before it")


def test_the_last_hop_cannot_be_left_out(malicious: Malicious) -> None:
    last = hops(malicious.lines, 1, 0)[-1]
    del malicious.lines[last]
    number, why = malicious.caught()
    assert (malicious.lines[number - 1]["what"], why) == ("ended", "the result is not what the last hop made")


def test_hops_cannot_change_their_order(malicious: Malicious) -> None:
    """True statements, with their receipts."""
    for some, other in itertools.combinations(hops(malicious.lines, 1, 0), 2):
        malicious.lines = exchanged(malicious.lines, some, other)
        assert malicious.caught()[0] == some + 1
        malicious.lines = exchanged(malicious.lines, some, other)


def test_a_group_cannot_have_begun_with_another_model(malicious: Malicious) -> None:
    place = next(n for n in of_kind(malicious.lines, "ordered") if malicious.lines[n]["chained"])
    malicious.lines[place]["start"][1] = "ab" * 32
    number, why = malicious.caught()
    assert malicious.lines[number - 1]["what"] == "made"
    assert why.endswith("did not begin with the start of the group")


@pytest.mark.parametrize("program", ["relay", "parallel", "describe", "another"])
def test_a_relay_cannot_be_told_as_if_it_were_none(malicious: Malicious, program: str) -> None:
    """The nodes have signed models of a relay: the order of its hops counts, whatever the top server says."""
    first, second, third, *_ = hops(malicious.lines, 1, 0)
    serial = malicious.lines[first]["statement"]["serial"]
    for line in malicious.lines:
        if line["what"] == "ordered" and line["serial"] == serial:
            line |= {"chained": False, "program": program}
    left_out = malicious.lines.pop(second)
    assert malicious.caught() == (third, "there is no hop 1 before it")
    malicious.lines.insert(second, left_out)
    malicious.lines = exchanged(malicious.lines, second, third)
    assert malicious.caught()[0] == second + 1


@pytest.mark.parametrize("task", ["initialise", "train"])
def test_a_training_that_nobody_signed_is_no_answer(malicious: Malicious, task: str) -> None:
    made = next(line["statement"] for line in malicious.lines if line.get("statement", {}).get("task") == task)
    ended = next(n for n in of_kind(malicious.lines, "ended") if malicious.lines[n]["serial"] == made["serial"])
    malicious.lines[ended]["answered"] = [made["client"]]
    assert malicious.caught() == (ended + 1, "clients are said to have trained, and made no model")


def signed_by_top_server(lines: list[Line], played: Played, name: str) -> None:
    """Makes the results of a node anew, with other samples and signatures of the top server."""
    for place in of_kind(lines, "made"):
        line = lines[place]
        if line["statement"]["node"] == name:
            line["statement"]["samples"] = 123456
            line["certificate"] = fingerprint(played.top.certificate)
            line["receipt"] = played.top.sign(Statement.read(line["statement"]).text).hex()


def test_results_that_the_top_server_signed_for_a_node_are_named(
    malicious: Malicious, played: Played, tmp_path: Path
) -> None:
    """It may do so for its local nodes. The report tells it from the signature of a site."""
    admitted = next(n for n in of_kind(malicious.lines, "admitted") if malicious.lines[n]["node"] == "n1")
    malicious.lines[admitted] |= {"certificate": played.top.certificate.decode(), "caller": "top-server"}
    signed_by_top_server(malicious.lines, played, "n1")
    found = audit.verify(played.copied(tmp_path, rechained(malicious.lines, played.top, malicious.run)), played.ca)
    number = found.made["n1"]
    assert found.signed_for == {("n1", "top-server"): number}
    text = "\n".join(audit.report(found, trusted=True))
    assert f"node n1: {number} results, {number} of them signed by top-server" in text
    assert f"WARNING: {number} results signed by the top server itself" in text
    assert "signed by top-server" not in "\n".join(audit.report(audit.verify(played.directory, played.ca), True))


@pytest.mark.parametrize("later", [0, 1], ids=["before", "after"])
def test_a_node_with_a_certificate_of_its_own_does_not_let_the_top_server_sign(
    malicious: Malicious, played: Played, later: int
) -> None:
    admitted = next(n for n in of_kind(malicious.lines, "admitted") if malicious.lines[n]["node"] == "n1")
    own = {"certificate": played.top.certificate.decode(), "caller": "top-server"}
    malicious.lines.insert(admitted + later, {**malicious.lines[admitted], "what": "renewed", **own})
    signed_by_top_server(malicious.lines, played, "n1")
    number, why = malicious.caught()
    assert number == admitted + 2
    assert why.startswith("node n1 has a certificate of ")


def test_an_order_is_for_the_node_that_answers(malicious: Malicious) -> None:
    place = hops(malicious.lines, 1, 0)[0]
    client, serial = _client(malicious, place), malicious.lines[place]["statement"]["serial"]
    ordered = next(n for n in of_kind(malicious.lines, "ordered") if malicious.lines[n]["serial"] == serial)
    malicious.lines[ordered]["members"] = [[one, "n9"] for one, _ in malicious.lines[ordered]["members"]]
    number, why = malicious.caught()
    assert (number, why[: len(f"client {client} is not of")]) == (place + 1, f"client {client} is not of")


def test_the_site_has_kept_the_same_receipts(played: Played) -> None:
    path = played.folder / "s0" / "receipts.jsonl"
    with path.open("rb") as file:
        kept = [link.fields for link in links(file)]
    signed = {line["receipt"]: line["statement"] for line in kept if line.get("receipt")}
    told = [line for line in played.lines if line["what"] == "made" and line["statement"]["node"] == "n0"]
    assert signed == {line["receipt"]: line["statement"] for line in told}
    works = {line["asked"]["work"] for line in kept}
    assert works == {"initialise", "describe", "train", "evaluate"}
    assert all(line["asked"]["settings"]["local_epochs"] == 1 for line in kept if line["asked"]["work"] == "train")


def test_the_log_has_neither_weights_nor_labels(played: Played) -> None:
    """What describes the data of a client, and what was computed from them, is not in the log."""
    words = {word for line in played.lines for word in (*line, *line.get("statement", ()))}
    assert words.isdisjoint({"loss", "accuracy", "class_counts", "correct", "weights", "update_length"})
    longest = max(len(json.dumps({**line, "certificate": None})) for line in played.lines)
    assert longest < 1200


def test_a_signed_log_does_not_go_on_without_signatures(malicious: Malicious, played: Played, tmp_path: Path) -> None:
    """A thief would cut the log off, and go on as a run without TLS."""
    kept = malicious.lines[: of_kind(malicious.lines, "sealed")[0] + 1]
    more = [{**kept[0], "what": "resumed", "certificate": None}, {**kept[-1], "signature": None}]
    malicious.lines = [*kept, *more]
    assert malicious.caught() == (len(kept) + 1, "the log was signed, and is not any more")


def _client(malicious: Malicious, place: int) -> int:
    return int(malicious.lines[place]["statement"]["client"])
