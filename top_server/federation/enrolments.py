"""The federation while a run is up: who may join, who gets certificates, and who was revoked meanwhile."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fedgsp import certificates, lifecycle
from fedgsp.access import Caller
from fedgsp.errors import UserError
from fedgsp.files import file_version
from fedgsp.identity import Role
from fedgsp.messages import Failure, Hello
from fedgsp.revocation import Revocations
from top_server.federation.authority import PublicKey
from top_server.federation.folder import Folder
from top_server.federation.joining import refusal
from top_server.federation.registry import NotAllowedError, Registry, State
from top_server.nodes.admission import Refusal
from top_server.record.audit import Audit
from top_server.record.events.processes import NodeEnrolled, NodeRevoked
from top_server.record.journal import Recorder

logger = logging.getLogger(__name__)

#: How often the registry is looked at, in seconds; `top-server revoke` changes it.
POLL_S = 1.0
#: When the top server's certificate is tried again after it could not be renewed.
RETRY = dt.timedelta(minutes=1)
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
        self._version = file_version(folder.registry_file)
        self._registry = folder.registry()
        self._due = folder.certify(certificate, hosts)
        revoked.replace(self._registry.revoked)

    @property
    def revoked(self) -> Collection[str]:
        """The enrolments that are revoked, as far as this process knows."""
        return self._registry.revoked.keys()

    def registry(self) -> Registry:
        """The registry, read again if it has changed. While it is damaged, the last good one counts."""
        version = file_version(self._folder.registry_file)
        if version != self._version:
            self._version = version
            try:
                self._registry = self._folder.registry()
            except UserError as error:
                logger.error("the registry is not read again: %s", error)
        return self._registry

    def may_join(self, hello: Hello, caller: Caller) -> Refusal | None:
        """Why a node may not join; None if it may."""
        return refusal(self.registry(), caller.proven, caller.enrolment, hello)

    def enrol(self, name: str, enrolment: str, key: PublicKey) -> bytes:
        """The certificate (DER) of a node that uses its invitation; raises NotAllowedError."""
        authority = self._folder.authority()
        registry = self._folder.change(lambda registry: registry.enrolled(name, enrolment, time.time()))
        return authority.for_node(name, registry.nodes[name], key)

    def renew(self, name: str, enrolment: str, key: PublicKey) -> bytes:
        """A new certificate (DER) of an enrolled node; raises NotAllowedError."""
        entry = self._folder.registry().member(name, enrolment)
        if entry is None:
            raise NotAllowedError("this node is not enrolled: ask for an invitation")
        return self._folder.authority().for_node(name, entry, key)

    def note(self, role: Role, name: str, certificate: bytes) -> None:
        """Records that a node got its first certificate (DER), or a new one."""
        if role is Role.INVITED:
            self._recorder.record(NodeEnrolled(node=name))
        else:
            logger.debug("node=%s has a new certificate", name)
        what = "enrolled" if role is Role.INVITED else "certified"
        self._audit.note(what, node=name, fingerprint=hashlib.sha256(certificate).hexdigest())

    @asynccontextmanager
    async def followed(self, note: Callable[[Collection[str]], None], tell: Tell) -> AsyncIterator[None]:
        """While the body runs, changes of the registry take effect, and the top server's certificate stays fresh.

        `note` hears of all revoked enrolments before the calls of their holders end, and `tell` afterwards.
        """
        async with lifecycle.beside(self._follow(note, tell), "follow the registry"):
            yield

    async def _follow(self, note: Callable[[Collection[str]], None], tell: Tell) -> None:
        before = self._registry
        while True:
            await asyncio.sleep(POLL_S)
            now = self.registry()
            try:
                if now.revoked.keys() != before.revoked.keys():
                    note(now.revoked)
                    self._revoked.replace(now.revoked)
                    for name in _newly_revoked(before, now):
                        self._recorder.record(NodeRevoked(node=name))
                        self._audit.note("revoked", node=name)
                    await tell(now.revoked)
                before = now
                if certificates.now() >= self._due:
                    await self._renew_own()
            except Exception:  # it is tried again: no bug may keep a revoked node in the run
                logger.exception("a change of the registry has not taken effect everywhere")

    async def _renew_own(self) -> None:
        try:
            self._due = await asyncio.to_thread(self._folder.certify, self._certificate, self._hosts)
        except UserError as error:
            logger.error("the certificate of this top server is not renewed: %s", error)
            self._due = certificates.now() + RETRY


def _newly_revoked(before: Registry, now: Registry) -> list[str]:
    """The names that are revoked now, and were not before, or under another enrolment."""
    return [name for name, one in now.nodes.items() if one.state is State.REVOKED and before.nodes.get(name) != one]
