"""Verifies the audit log of a run, line by line, and says who took part in it."""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fedgsp.errors import ConfigError, DataError, RunError
from fedgsp.files import MOST_OF_PEM, open_file, read_file
from fedgsp.identity import Role, node, worker
from fedgsp.programs import PROGRAMS
from fedgsp.run_ids import main_run
from fedgsp.security.chained import BrokenError, Link, TornError, links
from fedgsp.security.receipts import Statement
from fedgsp.security.signing import certificates_in, fingerprint, holds, identity_of, why_not_trusted
from fedgsp.visible import visible
from fedgsp.words import counted
from top_server.findings import Call, Findings, whole
from top_server.record.audit import seal_text
from top_server.record.directory import RunDirectory
from top_server.recorded import damages, differences, recorded

Fields = Mapping[str, Any]


class Verifier:
    """Takes the lines of a log in their order; raises BrokenError at the first that cannot be true."""

    def __init__(self, ca: bytes | None = None, own: bytes | None = None) -> None:
        """With a `ca` (PEM), all certificates must be of it; without, a person has to compare fingerprints.

        `own` is the certificate (PEM) of the top server that continues the log. Certificates of another CA are then
        noted as `foreign`. They count once a seal after them was made with the key of `own`.
        """
        self.found = Findings()
        self._ca, self._own = ca, own
        #: Time of the line about the latest start of the top server. Connections are not older.
        self._since = ""
        #: (node, fingerprint) -> certificate, and whom it names.
        #: Digests of all models of the log, which are about 150 bytes each.
        self._known: set[str] = set()
        self._certificates: dict[tuple[str, str], tuple[bytes, str]] = {}
        #: Node -> the first of those whom its certificates name.
        self._speakers: dict[str, str] = {}
        self._calls: dict[int, Call] = {}
        #: The relay of each group of the current round: (client, model, digest) of its hops.
        self._relays: dict[tuple[str, int, int], list[tuple[int, str, str]]] = {}
        self._take: dict[str, Callable[[Link, Fields], None]] = {
            "began": self._begin,
            "resumed": self._begin,
            "admitted": self._admit,
            "renewed": self._admit,
            "ordered": self._order,
            "made": self._make,
            "skipped": self._skip,
            "ended": self._end,
            "sealed": self._seal,
            "finished": self._finish,
            "settled": self._settle,
            "extended": self._extend,
        }
        #: Whether the top server ended because the run was finished.
        self._over = False

    def take(self, link: Link) -> None:
        """Verifies one line against those before it."""
        what = link.fields.get("what")
        _require(isinstance(what, str), link, "it does not tell what happened")
        _require(link.number > 1 or what in ("began", "resumed"), link, "the log does not begin with a run")
        _require(what != "began" or link.number == 1, link, "a run cannot begin twice")
        _require(not self._over or what in ("sealed", "resumed"), link, "the run had finished")
        try:
            if take := self._take.get(str(what)):  # lines of other kinds only have to be in the chain
                take(link, link.fields)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise BrokenError(link.number, f"it lacks something, or has it wrong: {visible(str(error))}") from None
        self.found.lines, self.found.last = link.number, str(what)
        self.found.whats[str(what)] += 1

    def _begin(self, link: Link, line: Fields) -> None:
        found, shown = self.found, line["certificate"]
        first = link.number == 1
        _require(first or line["run"] == found.run, link, f"it is of run {line['run']!r}, not of {found.run!r}")
        _require(first or shown or found.certificate is None, link, "the log was signed, and is not any more")
        unsigned = "nobody has signed it, although --tls-ca was given: the run had no TLS, or signatures were removed"
        _require(bool(shown) or self._ca is None, link, unsigned)
        self._since, self._over = line["time"], False
        found.resumed |= first and line["what"] == "resumed"
        found.run, found.certificate = str(line["run"]), shown.encode() if shown else None
        found.settings = [str(line["settings"])]
        if found.certificate is not None:
            self._trust(link, found.certificate, "top-server")
            named = identity_of(found.certificate)
            _require(
                named is not None and named.role is Role.TOP_SERVER,
                link,
                f"its certificate is that of {named or 'nobody'}, not of a top server",
            )

    def _admit(self, link: Link, line: Fields) -> None:
        name, shown = str(line["node"]), line["certificate"]
        _require(bool(shown) == self._signed, link, f"node {name} has {'a' if shown else 'no'} certificate")
        if shown:
            certificate = shown.encode()
            named = identity_of(certificate)
            _require(
                named is not None and named.speaks_for(node(name)) and str(named) == line["caller"],
                link,
                f"the certificate of node {name} is that of {named or 'nobody'}",
            )
            self._trust(link, certificate, str(named))
            self._certificates[name, fingerprint(certificate)] = certificate, str(named)
            speaker = self._speakers.setdefault(name, str(named))
            if speaker != str(named):
                why = f"node {name} has a certificate of {speaker}, and one of {named}: who signed is not certain"
                self.found.mixed = self.found.mixed or BrokenError(link.number, visible(why))

    def _order(self, link: Link, line: Fields) -> None:
        serial, program = whole(line["serial"]), PROGRAMS.built_in.get(str(line["program"]))
        _require(serial > self.found.serial, link, f"order {serial} comes twice, or out of its turn")
        ours = main_run(line["run"]) == main_run(self.found.run)  # or of the local run of that run
        _require(ours, link, f"it is of run {line['run']!r}")
        self.found.serial, start = serial, line["start"]
        self._calls[serial] = Call(
            line["run"],
            whole(line["round"]),
            whole(line["group"]),
            bool(line["chained"] or (program and program.chained)),
            program.members_make if program is not None else None,
            dict(line["members"]),
            (start[0], start[1]) if start else None,
            {client: model for client, *model in line.get("own_starts", ())},
        )
        self._known.update(digest for _, digest in ([start] if start else []) + [*self._calls[serial].own.values()])

    def _make(self, link: Link, line: Fields) -> None:
        said = Statement.read(line["statement"])
        call = self._calls.get(said.serial)
        _require(call is not None, link, f"nobody ordered what client {said.client} made (serial {said.serial})")
        assert call is not None
        _require((said.run, said.round, said.group) == call.place, link, "the order was for another group or round")
        _require(call.nodes.get(said.client) == said.node, link, f"client {said.client} is not of node {said.node}")
        key = said.task, said.position, said.attempt
        _require(key not in call.seen, link, f"client {said.client} answers an order that was answered")
        call.seen.add(key)
        # What the node signed, and not only the word of the top server, says that it was a hop of a relay.
        call.chained |= said.model.startswith(f"{said.run}/{said.round}/{said.group}/relay/")
        self._check_receipt(link, line, said)
        self._check_start(link, said, call)
        self._known.add(said.digest)
        self.found.made[said.node] += 1
        self.found.without_start += not said.start_digest

    def _check_receipt(self, link: Link, line: Fields, said: Statement) -> None:
        receipt, shown = line["receipt"], line["certificate"]
        if not self._signed:
            _require(not receipt, link, "it has a receipt, in a log without certificates")
            return
        certificate, signer = self._certificates.get((said.node, str(shown)), (b"", ""))
        _require(bool(certificate), link, f"node {said.node} has shown no certificate {str(shown)[:16]}...")
        _require(bool(said.model and said.digest), link, f"client {said.client} has stated no model, or no digest")
        _require(
            holds(certificate, said.text, bytes.fromhex(receipt or "")),
            link,
            f"the receipt is not the signature of node {said.node} for what client {said.client} made",
        )
        self.found.receipts += 1
        if signer not in (str(node(said.node)), str(worker(said.node))):
            self.found.signed_for[said.node, signer] += 1

    def _check_start(self, link: Link, said: Statement, call: Call) -> None:
        """The start must be what the hop before has made, or the start of the group."""
        hops = self._relays.setdefault(call.place, []) if call.chained else []
        begins = not call.chained or said.position == 0
        _require(begins or said.position <= len(hops), link, f"there is no hop {said.position - 1} before it")
        before = call.start if begins else hops[said.position - 1][1:]
        if before is not None and said.start_digest and before[1] and (said.start == before[0] or not begins):
            made_by = "the start of the group" if begins else f"what client {hops[said.position - 1][0]} made"
            _require(
                (said.start, said.start_digest) == before, link, f"client {said.client} did not begin with {made_by}"
            )
        # Whatever models are called: what somebody began with was made by somebody, or ordered.
        # A start without a digest is computed by the manager.
        computed = [said.start, ""] == list(call.own.get(said.client, call.start) or ())
        known = computed or not (self._signed and said.start_digest) or said.start_digest in self._known
        _require(known, link, f"client {said.client} began with a model that no line before has")
        if call.chained:
            hops[said.position :] = [(said.client, said.model, said.digest)]

    def _skip(self, link: Link, line: Fields) -> None:
        call = self._calls[line["serial"]]
        hops = self._relays.get(call.place, [])
        hops[:] = [hop for hop in hops if hop[0] != line["client"]]

    def _end(self, link: Link, line: Fields) -> None:
        call, result = self._calls[line["serial"]], line["result"]
        _require(not (call.makes and line["answered"]), link, "clients are said to have trained, and made no model")
        hops = self._relays.get(call.place, [])
        self._known.update(result[1:] if result else ())
        if call.chained and result:
            _require(bool(hops) and hops[-1][1:] == tuple(result), link, "the result is not what the last hop made")

    def _seal(self, link: Link, line: Fields) -> None:
        found, signature = self.found, line["signature"]
        _require(bool(signature) == self._signed, link, "it has no signature" if self._signed else "nobody can sign")
        if found.certificate is not None:
            text = seal_text(found.run, link.number, link.before)
            _require(
                holds(found.certificate, text, bytes.fromhex(signature)),
                link,
                "the top server has not signed the lines before it",
            )
            found.sealed = link.number
            if found.foreign and holds(self._own or b"", text, bytes.fromhex(signature)):
                found.foreign = None
        if line["run"] == found.run:
            if whole(line["round"]) > found.rounds:
                del found.settings[:-1]  # what the top server was about to write has long been written
            found.seals.setdefault(line["round"], link.number)
        found.ended |= self._over
        over = line["run"], whole(line["round"])
        self._calls = {
            serial: call for serial, call in self._calls.items() if call.run != over[0] or call.round > over[1]
        }
        # A top server that ends in the middle of a round seals, too, and its relays may go on.
        self._relays = {
            place: hops for place, hops in self._relays.items() if place[0] != over[0] or place[1] > over[1]
        }

    def _finish(self, link: Link, line: Fields) -> None:
        self.found.finished = self._over = True

    def _settle(self, link: Link, line: Fields) -> None:
        self.found.settings.append(str(line["settings"]))

    def _extend(self, link: Link, line: Fields) -> None:
        _require(self.found.finished, link, "a run that had not finished cannot be extended")
        _require(whole(line["rounds"]) > self.found.rounds, link, "an extended run has more rounds")
        self.found.finished = self.found.ended = False
        if len(self.found.settings) == 1:
            self.found.settings.clear()  # an earlier version did not tell what it had written

    @property
    def _signed(self) -> bool:
        return self.found.certificate is not None

    def _trust(self, link: Link, certificate: bytes, whose: str) -> None:
        if self._ca is not None:
            since, at = (dt.datetime.fromisoformat(time) for time in (self._since, link.fields["time"]))
            if why := why_not_trusted(certificate, self._ca, at, since):
                remedy = "give the ca.pem of this run's federation folder, or the CA of its certificates"
                foreign = f"the certificate of {whose} does not fit --tls-ca: {visible(why)} ({remedy})"
                _require(self._own is not None, link, foreign)
                self.found.foreign = self.found.foreign or BrokenError(link.number, foreign)
        self.found.shown.setdefault(whose, set()).add(fingerprint(certificate))


def read(file: BinaryIO, ca: bytes | None = None, own: bytes | None = None) -> Findings:
    """Verifies a log as a stream; `ca` and `own` are those of `Verifier`.

    Raises BrokenError at the first line that is wrong; a torn last line is noted.
    """
    verifier = Verifier(ca, own)
    try:
        for link in links(file):
            verifier.take(link)
    except TornError:
        verifier.found.torn = True
    if verifier.found.foreign:
        raise verifier.found.foreign
    return verifier.found


def verify(directory: RunDirectory, ca: bytes | None = None) -> Findings:
    """Verifies the log of a run directory, and that it is the whole log of this run.

    Raises BrokenError with the first line that is wrong, and DataError if there is no log, or if other files of the
    record cannot be read or are not those of the run.
    """
    try:
        with open_file(directory.audit) as file:
            # A top server that is still at work writes into the log first.
            record = recorded(directory)
            found = read(file, ca)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{directory.audit} cannot be read: {reason}", "give a run directory, or restore it") from None
    if found.mixed:
        raise found.mixed
    if found.resumed:
        raise BrokenError(1, "the log begins with a resumed run: its beginning is lost")
    for differs, number, why in differences(found, record):
        if differs:
            raise BrokenError(number, why)
    DataError.refuse(damages(found, record, directory))
    return found


def report(found: Findings, trusted: bool) -> Iterator[str]:
    """Lines for a person. `trusted`: the certificates were checked against a CA."""
    state = "finished" if found.whole else "not finished"
    yield f"run {visible(found.run)}: {counted(found.lines, 'line')}, {counted(found.rounds, 'round')}, {state}"
    made = sum(found.made.values())
    if found.certificate is None:
        yield f"{counted(made, 'training result')}, unsigned: the run had no TLS, so that nothing proves who made them"
        yield "the chain of hashes holds, unsigned: whoever can write the file could have made it anew"
    else:
        yield f"{counted(made, 'training result')}, {counted(found.receipts, 'receipt')}, and all of them hold"
        yield f"all lines up to {found.sealed} are signed by the top server"
    if found.without_start:
        yield f"{counted(found.without_start, 'result')} with no start model: initial models, or published before"
    for what, told in (
        ("invented", "results were refused because their node had not signed them"),
        ("refused", "lines tell of refusals"),
        ("skipped", "times a client was skipped"),
        ("fetched", "lines tell of models that were fetched from the servers"),
    ):
        if found.whats[what]:
            yield f"{found.whats[what]} {told}"
    if found.signed_for:
        signed = counted(sum(found.signed_for.values()), "result")
        yield f"WARNING: {signed} signed by the top server itself: right only for nodes that it ran (--local-nodes)"
    for name, number in sorted(found.made.items()):
        others = [f", {count} of them signed by {who}" for (of, who), count in found.signed_for.items() if of == name]
        yield f"  node {visible(name)}: {counted(number, 'result')}{visible(''.join(others))}"
    for whose, prints in sorted(found.shown.items()):
        for shown in sorted(prints):
            yield f"  {visible(whose)}: certificate {shown}{'' if trusted else ' (compare it)'}"
    if found.torn:
        yield "the last line is cut off, as by a crash; it does not count"
    if not found.whole:
        yield f"lines after {found.sealed} could be missing or changed: no signature covers them yet"


def check(run_dir: Path, ca: Path | None) -> Iterator[str]:
    """The report on a run directory. Raises DataError that names the first broken line.

    After the report of a run that is not finished, raises RunError: somebody may have cut off the end of its record.
    """
    try:
        authority = read_file(ca, MOST_OF_PEM) if ca is not None else None
        if authority is not None:
            certificates_in(authority)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it has no certificate in PEM"
        raise ConfigError(f"--tls-ca {ca} cannot be read: {reason}", "give the PEM file of the CA") from None
    directory = RunDirectory(run_dir)
    try:
        found = verify(directory, authority)
    except BrokenError as error:
        raise DataError(
            f"{directory.audit}, {error}", "nothing from this line on is proven: compare it with a copy"
        ) from None
    yield from report(found, ca is not None)
    RunError.require(
        found.whole,
        f"{directory.audit} has no end: the run is not finished, or lines at the end are missing",
        "verify it again when the run is finished, or ask who ran it",
    )


def _require(holds: bool, link: Link, why: str) -> None:
    if not holds:
        raise BrokenError(link.number, visible(why))
