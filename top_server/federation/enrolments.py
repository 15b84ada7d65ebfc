"""The federation while a run is up: who may join, who gets certificates, and who was revoked meanwhile."""

import asyncio
import hashlib
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from fedgsp.errors import UserError, valid
from fedgsp.identity import Role
from fedgsp.messages import Failure, Hello
from fedgsp.processes import lifecycle
from fedgsp.security import certificates
from fedgsp.security.access import Caller
from fedgsp.security.revocation import Revocations
from top_server.federation.authority import Authority, PublicKey, fingerprint_of
from top_server.federation.folder import Folder
from top_server.federation.joining import refusal
from top_server.federation.live_registry import LiveRegistry
from top_server.federation.registry import Entry, NotAllowedError, Registry, State
from top_server.nodes.admission import Refusal
from top_server.record.audit import Audit
from top_server.record.events.processes import NodeEnrolled, NodeRevoked
from top_server.record.journal import Recorder

logger = logging.getLogger(__name__)

#: How often the registry is looked at, in seconds; `top-server revoke` changes it.
POLL_S = 1.0
#: How long a node has to wait for a certificate for a further key, in seconds. It is less if its certificates are
#: good for less than three times as long.
PAUSE_S = 60.0
#: When the top server's certificate is tried again after it could not be renewed, in seconds.
RETRY_S = 60.0
#: Tells other processes which enrolments are revoked.
Tell = Callable[[Collection[str]], Awaitable[None]]


class Enrolments:
    """The registry of a federation as it is now, with what a run does with it."""

    def __init__(
        self,
        folder: Folder,
        certificate: Path,
        hosts: Sequence[str],
        revoked: Revocations,
        recorder: Recorder,
        audit: Audit,
        note_refusal: Callable[[str, Failure], None],
    ) -> None:
        """`certificate` is the file of the top server's own certificate, which is for `hosts`."""
        self._folder = folder
        self._certificate = certificate
        self._hosts = hosts
        self._revoked = revoked
        self._recorder = recorder
        self._audit = audit
        self.note_refusal = note_refusal
        self._live = LiveRegistry(folder)
        #: The registry as it is in force in this run.
        self._in_force = self._live.now()
        self._own = folder.certify(certificate, hosts)
        self._again_at = -math.inf
        revoked.replace(self._in_force.revoked)
        self._issuing = threading.Lock()
        #: First or further certificates, enrolment -> the latest one, the fingerprint of its key, and since when.
        self._latest: dict[tuple[bool, str], tuple[bytes, str, float]] = {}
        #: Name of a node -> its latest certificate in the record.
        self._noted: dict[str, str] = {}

    @property
    def revoked(self) -> Collection[str]:
        """The enrolments that are revoked."""
        return self._live.now().revoked.keys()

    def may_join(self, hello: Hello, caller: Caller) -> Refusal | None:
        """Why a node may not join; None if it may."""
        return refusal(self._live.now(), caller.proven, caller.enrolment, hello)

    def enrol(self, name: str, enrolment: str, key: PublicKey) -> bytes:
        """The certificate (DER) of a node that uses its invitation; raises NotAllowedError."""
        authority, shown = self._folder.authority(), fingerprint_of(key)
        registry = self._folder.change(lambda registry: registry.enrolled(name, enrolment, shown, time.time()))
        return self._issue(authority, name, registry.nodes[name], key, first=True)

    def renew(self, name: str, enrolment: str, key: PublicKey) -> bytes:
        """A new certificate (DER) of an enrolled node; raises NotAllowedError."""
        entry = self._folder.registry().member(name, enrolment)
        if entry is None:
            raise NotAllowedError("this node is not enrolled: ask for an invitation")
        return self._issue(self._folder.authority(), name, entry, key, first=False)

    def _issue(self, authority: Authority, name: str, entry: Entry, key: PublicKey, first: bool) -> bytes:
        """A certificate, or the one that was issued for the same key within PAUSE_S. For another key it is refused.

        Otherwise a node could fill the audit log.
        """
        which, now, shown = (first, entry.enrolment), time.monotonic(), fingerprint_of(key)
        with self._issuing:
            latest, of, since = self._latest.get(which, (b"", "", now))
            if not latest or now >= since + min(PAUSE_S, entry.certificate_s / 3):
                latest, of, _ = self._latest[which] = authority.for_node(name, entry, key), shown, now
        valid(of == shown, "this node had a new certificate a moment ago: try again in a minute", NotAllowedError)
        return latest

    def note(self, role: Role, name: str, certificate: bytes) -> None:
        """Records that a node got its first certificate (DER), or a new one, unless it got the same one again."""
        fingerprint = hashlib.sha256(certificate).hexdigest()
        if self._noted.get(name) == fingerprint:
            return
        self._noted[name] = fingerprint
        if role is Role.INVITED:
            self._recorder.record(NodeEnrolled(node=name))
        else:
            logger.debug("node=%s has a new certificate", name)
        what = "enrolled" if role is Role.INVITED else "certified"
        self._audit.note(what, node=name, fingerprint=fingerprint)

    def followed(self, note: Callable[[Collection[str]], None], tell: Tell) -> AbstractAsyncContextManager[None]:
        """While the body runs, changes of the registry take effect, and the top server's certificate stays fresh.

        `note` gets all revoked enrolments before the calls of these nodes are ended; `tell` gets them afterwards.
        """
        return lifecycle.beside(self._follow(note, tell), "follow the registry")

    async def _follow(self, note: Callable[[Collection[str]], None], tell: Tell) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                before, now = self._in_force, self._live.now()
                if now.revoked.keys() != before.revoked.keys():
                    note(now.revoked)
                    self._revoked.replace(now.revoked)
                    for name in _newly_revoked(before, now):
                        self._recorder.record(NodeRevoked(node=name))
                        self._audit.note("revoked", node=name)
                    await tell(now.revoked)
                self._in_force = now
                if not certificates.is_fresh(self._own, certificates.now()) and time.monotonic() >= self._again_at:
                    await self._renew_own()
            except Exception:  # it is tried again: no bug may keep a revoked node in the run
                logger.exception("a change of the registry, or the renewal of the own certificate, is not complete")

    async def _renew_own(self) -> None:
        try:
            self._own = await asyncio.to_thread(self._folder.certify, self._certificate, self._hosts)
        except UserError as error:
            logger.error("the certificate of this top server is not renewed: %s", error)
            self._again_at = time.monotonic() + RETRY_S


def _newly_revoked(before: Registry, now: Registry) -> list[str]:
    """The nodes that were revoked in between, also if they are invited anew by now."""
    ended = now.revoked.keys() - before.revoked.keys()
    # An invitation that took the place of another one has revoked nobody.
    lost = {name for name, one in before.nodes.items() if one.state is State.ENROLLED and one.enrolment in ended}
    return sorted(lost | {name for name, one in now.nodes.items() if one.enrolment in ended})
