"""A top server whose program was changed names the models of a relay as it likes, and leaves out one of its hops."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest

from fedgsp.identity import node
from fedgsp.security.chained import BrokenError
from fedgsp.security.receipts import Statement
from fedgsp.security.signing import Signer, fingerprint
from tests.support.certificates import Authority
from top_server import audit
from top_server.record.directory import RunDirectory
from top_server.resume.audit import opened

INITIAL = "run/initial"


def digest(model: str) -> str:
    return hashlib.sha256(model.encode()).hexdigest()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("keys"))


def logged(path: Path, authority: Authority, scheme: str, left_out: str) -> RunDirectory:
    """The run directory of three nodes that trained one after the other, without the line of one of them."""
    directory = RunDirectory(path / "run")
    directory.path.mkdir()
    directory.config.write_text('tls_ca = "ca.pem"\n')
    directory.events.write_text('{"event": "run_started", "run": "run"}\n{"event": "run_finished"}\n')
    directory.history.write_text('{"round": 1}\n')
    top = authority.issue("top")
    own = {name: authority.issue(name, identity=node(name)) for name in "abc"}
    signers = {name: Signer(files.key.read_bytes(), files.cert.read_bytes()) for name, files in own.items()}
    with opened(
        directory, "run", Signer(top.key.read_bytes(), top.cert.read_bytes()), authority.ca.read_bytes(), False
    ) as log:
        for client, (name, files) in enumerate(own.items()):
            shown: dict[str, Any] = {"certificate": files.cert.read_text(), "clients": str(client), "address": None}
            log.note("admitted", node=name, caller=f"node {name}", task_digest=None, **shown)
        members = list(enumerate(own))
        place: dict[str, Any] = {"round": 1, "group": 0, "serial": 1}
        begun: dict[str, Any] = {
            "start": [INITIAL, digest(INITIAL)],
            "reveal": None,
            "finished": 0,
            "members": members,
        }
        log.note("ordered", run="run", program="parallel", chained=False, manager="m0", **place, **begun)
        start = INITIAL
        for client, name in members:
            made = f"run/1/0/{scheme}/{client}"
            said = Statement(
                "run", 1, "train", 0, client, 0, 1, client, name, start, digest(start), made, digest(made), "", 10
            )
            if name != left_out:
                shown = {"certificate": fingerprint(own[name].cert.read_bytes()), "via": None, "bytes": 1}
                receipt = signers[name].sign(said.text).hex()
                log.note("made", statement=dataclasses.asdict(said), receipt=receipt, **shown)
            start = made
        log.note("ended", answered=[], result=[start, digest(start)], failure=None, **place)
        log.seal("run", 1)
        log.close(True, "the run is finished")
    return directory


@pytest.mark.parametrize("scheme", ["relay", "parallel", "chain", "window"])
@pytest.mark.parametrize(("left_out", "next_one"), [("a", 1), ("b", 2)])
def test_a_hop_that_is_left_out_is_missed_whatever_its_model_is_called(
    tmp_path: Path, authority: Authority, scheme: str, left_out: str, next_one: int
) -> None:
    directory = logged(tmp_path, authority, scheme, left_out)
    with pytest.raises(BrokenError, match=f"client {next_one} began with a model that no line before has|no hop"):
        audit.verify(directory, authority.ca.read_bytes())


@pytest.mark.parametrize("scheme", ["relay", "parallel"])
def test_with_all_hops_the_log_holds(tmp_path: Path, authority: Authority, scheme: str) -> None:
    found = audit.verify(logged(tmp_path, authority, scheme, ""), authority.ca.read_bytes())
    assert found.receipts == 3
