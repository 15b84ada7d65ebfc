"""Tickets: short proofs that a process may ask another one for one thing.

A run has a secret key, which only the top server and its group managers know. Every process that serves others has a
key of its own, derived from it: a node gets the key of its own services when it joins, and no key of another process.
So a node checks the tickets of those who ask it, and cannot make a ticket for anybody else's services.

A ticket names the verb, the run, the round, the thing (such as the id of a model), and the reader who may use it. It
ends with an HMAC-SHA256 over these. A ticket for a model is good until its holder has reached the next round, or the
next run. Tickets to join, to attach and to lead name no round: they are good as long as the process that checks them
has its key.

With the same keys a process shows whom it serves: it answers a question of the caller, which changes with each call.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from enum import StrEnum

from fedgsp.identity import Identity

KEY_BYTES = 32
#: The longest ticket that is looked at, in bytes; gRPC takes 8 KiB of metadata.
MOST_BYTES = 2048
_MAC_BYTES = hashlib.sha256().digest_size


class Verb(StrEnum):
    """What a ticket allows."""

    JOIN = "join"  # to take part in a run, as a process of the same user on the same machine
    CHECK = "check"  # to ask whether this process could take part, as a process of the same user on the same machine
    ASK = "ask"  # to ask a grouping service, as a process of the same user on the same machine
    ATTACH = "attach"  # to take orders from a group manager
    LEAD = "lead"  # to tell a group manager what to do
    FETCH = "fetch"  # to fetch a model
    UPLOAD = "upload"  # to send a model
    ENROL = "enrol"  # to get a certificate for an invitation
    RENEW = "renew"  # to get a fresh certificate


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a ticket says."""

    verb: Verb
    thing: str
    reader: Identity
    run: str = ""
    round: int = 0
    #: Distinguishes orders for the same thing, such as chains that were declared again.
    attempt: int = 0


def new_key() -> bytes:
    """A fresh key."""
    return secrets.token_bytes(KEY_BYTES)


def issue(key: bytes, ticket: Ticket) -> bytes:
    """A ticket for the services that have this key."""
    said = "\n".join(
        (ticket.verb, ticket.thing, ticket.reader.uri, ticket.run, str(ticket.round), str(ticket.attempt))
    ).encode()
    return said + _mac(key, said)


def read(key: bytes, shown: bytes) -> Ticket | None:
    """What a ticket says; None if it was not issued with this key."""
    said, mac = shown[:-_MAC_BYTES], shown[-_MAC_BYTES:]
    if len(shown) > MOST_BYTES or not hmac.compare_digest(mac, _mac(key, said)):
        return None
    try:
        verb, thing, reader, run, round_number, attempt = said.decode().split("\n")
        return Ticket(Verb(verb), thing, Identity.of(reader), run, int(round_number), int(attempt))
    except ValueError:  # a name that no process has, or an id with a line break
        return None


def answer(key: bytes, question: str) -> bytes:
    """What a process answers to a question, to show that it knows a key."""
    return _mac(key, b"answer to " + question.encode())


class Issuer:
    """Makes tickets for the services of all processes of a run: only the top server and its managers have one."""

    def __init__(self, run_key: bytes) -> None:
        self.run_key = run_key

    def key_of(self, holder: Identity) -> bytes:
        """The key of the services of one process."""
        return _mac(self.run_key, b"services of " + holder.uri.encode())

    def answer(self, holder: Identity, server: str, question: str) -> bytes:
        """What the server of this name answers to a question of `holder`, to show that it is one of the run."""
        return answer(self.key_of(holder), f"{server}\n{question}")

    def ticket(self, holder: Identity, ticket: Ticket) -> bytes:
        """A ticket for the services of `holder`."""
        return issue(self.key_of(holder), ticket)


class Door:
    """Checks the tickets that are shown to one process. It is closed until it has a key."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key
        self._run = self._before = ""
        self._round = 0

    def change(self, key: bytes) -> None:
        """From now on tickets of this key are good. With another key than before, rounds begin anew."""
        if key != self._key:
            self._key, self._run, self._before, self._round = key, "", "", 0

    def reach(self, run: str, round_number: int) -> None:
        """A round of a run is being played: tickets of earlier rounds and of the run before are not good any more."""
        if run not in (self._run, self._before):
            self._run, self._before, self._round = run, self._run, 0
        if run == self._run:
            self._round = max(self._round, round_number)

    def play(self, run: str, round_number: int) -> None:
        """As `reach`; the round may also be an earlier one: a newcomer's prior model is trained as in round 1."""
        self.reach(run, round_number)
        if run == self._run:
            self._round = round_number

    def is_proven(self, server: str, question: str, shown: bytes) -> bool:
        """Whether the process that was asked this has shown that it is the server of this name, one of the run."""
        return self._key is not None and hmac.compare_digest(answer(self._key, f"{server}\n{question}"), shown)

    def read(self, shown: bytes) -> Ticket | None:
        """What a ticket says; None if it is not good here and now."""
        ticket = read(self._key, shown) if self._key is not None else None
        # Round 0 is that of initial models, which a later round may need for the first time. Before the first order of
        # a run, others may ask already for what this process makes in it.
        over = ticket is not None and (
            (ticket.run == self._run and 0 < ticket.round < self._round) or (ticket.run == self._before != "")
        )
        return None if over else ticket


def _mac(key: bytes, said: bytes) -> bytes:
    return hmac.digest(key, said, "sha256")
