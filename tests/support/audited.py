"""A real run of two sites whose audit log tests change, and a top server that forges it."""

from __future__ import annotations

import asyncio
import copy
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedgsp.identity import node
from fedgsp.security.chained import BEGIN, BrokenError, hash_of, line_of
from fedgsp.security.signing import Signer
from fedgsp.security.tls import TlsFiles
from tests.support import processes
from tests.support.certificates import Authority
from top_server import audit
from top_server.record.audit import seal_text
from top_server.record.directory import RunDirectory

Line = dict[str, Any]
CLIENTS = ("--task-option", "clients=8")


@dataclass(frozen=True)
class Played:
    """A finished run, and everything that the top server and the CA have."""

    folder: Path
    directory: RunDirectory
    lines: list[Line]
    authority: Authority
    top: Signer

    @property
    def ca(self) -> bytes:
        return self.authority.ca.read_bytes()

    def copied(self, tmp_path: Path, lines: Sequence[bytes]) -> RunDirectory:
        """The run directory with another log."""
        for name in ("events.jsonl", "history.jsonl", "config.toml"):
            shutil.copy(self.directory.path / name, tmp_path / name)
        found = RunDirectory(tmp_path)
        found.audit.write_bytes(b"".join(lines))
        return found

    def broken(self, tmp_path: Path, lines: Sequence[bytes], ca: bool = True) -> tuple[int, str]:
        """The line that the verification names, and its reason."""
        directory = self.copied(tmp_path, lines)
        with pytest.raises(BrokenError) as caught:
            audit.verify(directory, self.ca if ca else None)
        return caught.value.number, caught.value.why


def flags(files: TlsFiles) -> list[str]:
    return ["--tls-ca", str(files.ca), "--tls-cert", str(files.cert), "--tls-key", str(files.key)]


async def _play(folder: Path, authority: Authority, top: TlsFiles) -> None:
    own = [flags(authority.issue(f"n{number}", identity=node(f"n{number}"))) for number in range(2)]
    settings = ["--min-nodes", "2", "--rounds", "2", "--beta", "2", "--sampling-rate", "1.0", *CLIENTS]
    async with processes.top_server(folder, *settings, *flags(top)) as server:
        address = (await server.event("listening"))["address"]
        nodes = [
            processes.node(folder, address, "--clients", ids, *CLIENTS, *own[n], *more, name=f"n{n}")
            for n, ids, more in ((0, "0,2,4,6", ["--state-dir", "s0"]), (1, "1,3,5,7", []))
        ]
        async with nodes[0] as first, nodes[1] as second:
            assert [await one.ended() for one in (server, first, second)] == [0, 0, 0], server.errors


def play(folder: Path) -> Played:
    """Runs two rounds of two sites with TLS."""
    authority = Authority(folder)
    files = authority.issue("top")
    asyncio.run(_play(folder, authority, files))
    directory = RunDirectory(folder / "run")
    lines = [json.loads(line) for line in directory.audit.read_text().splitlines()]
    return Played(folder, directory, lines, authority, Signer(files.key.read_bytes(), files.cert.read_bytes()))


def rechained(lines: Sequence[Line], signer: Signer | None = None, run: str = "") -> list[bytes]:
    """The lines with fresh numbers and hashes, as everybody can make them; with the key, also with fresh seals."""
    made, head = list[bytes](), BEGIN
    for number, line in enumerate(lines, start=1):
        fields = {key: value for key, value in line.items() if key not in ("line", "before")}
        if signer is not None and line["what"] == "sealed":
            fields["signature"] = signer.sign(seal_text(run, number, head)).hex()
        made.append(line_of(number, head, fields))
        head = hash_of(made[-1])
    return made


def of_kind(lines: Sequence[Line], what: str) -> list[int]:
    return [place for place, line in enumerate(lines) if line["what"] == what]


def hops(lines: Sequence[Line], round_number: int, group: int) -> list[int]:
    """The places of the lines of a relay, in the order of its hops."""
    wanted = {"task": "train", "round": round_number, "group": group}
    return [place for place in of_kind(lines, "made") if wanted.items() <= lines[place]["statement"].items()]


def exchanged(lines: list[Line], some: int, other: int) -> list[Line]:
    made = list(lines)
    made[some], made[other] = made[other], made[some]
    return made


class Malicious:
    """The top server itself, with its key: it writes what it likes, and seals it."""

    def __init__(self, played: Played, tmp_path: Path) -> None:
        self._played = played
        self._tmp_path = tmp_path
        self.lines = copy.deepcopy(played.lines)
        self.run = self.lines[0]["run"]

    def caught(self) -> tuple[int, str]:
        return self._played.broken(self._tmp_path, rechained(self.lines, self._played.top, self.run))
