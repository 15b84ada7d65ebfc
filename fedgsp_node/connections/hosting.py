"""Group managers on the machine of a worker: the top server asks for them, and they end with the connection to it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import grpc.aio

from fedgsp import wire
from fedgsp.connections.addresses import split_address
from fedgsp.connections.channels import Channels, describe
from fedgsp.errors import UserError
from fedgsp.files import private, write_secret
from fedgsp.identity import TOP_SERVER, is_name, node
from fedgsp.limits.answers import Unreadable, stream
from fedgsp.messages import (
    Admitted,
    Hosting,
    HostMessage,
    HostOrder,
    ManagerEnded,
    ManagerReady,
    StartManager,
    StopManager,
)
from fedgsp.processes.children import Child, Template, ready_line, stop
from fedgsp.security.access import shown
from fedgsp.security.local_key import Question
from fedgsp.security.tickets import Verb
from fedgsp.settings.flags import arguments_of
from fedgsp.settings.managers import COMMAND, IMPORTS, KEYS, ManagerSettings
from fedgsp.settings.run import NodeSettings
from fedgsp.to_the_end import cancelled_elsewhere, to_the_end
from fedgsp.v1 import hosting_pb2
from fedgsp_node.connections.managers import pause_s

logger = logging.getLogger(__name__)

#: The standard error of this process, to which its managers write.
_LOG = 2


class HostedManagers:
    """The managers of a run on this machine."""

    def __init__(
        self,
        settings: NodeSettings,
        name: str,
        channels: Channels,
        question: Callable[[], Question | None],
    ) -> None:
        """`question` makes what a connection asks the top server, if it has to prove that it is one of this user.

        It raises PeerError if there is no such server.
        """
        self._settings = settings
        self._name = name
        self._channels = channels
        self._question = question
        self._run = ""
        self._serving: asyncio.Task[None] | None = None

    async def serve(self, run_id: str) -> None:
        """From now on runs managers for a run; those of another run are ended."""
        if self._settings.host_managers and (run_id != self._run or self._serving is None or self._serving.done()):
            await self.close()
            self._run = run_id
            self._serving = asyncio.create_task(self._serve(run_id), name="host managers")

    async def close(self) -> None:
        """Ends all managers."""
        serving, self._serving, self._run = self._serving, None, ""
        if serving is not None:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def _serve(self, run_id: str) -> None:
        """One connection to the top server after the other."""
        tries = 0
        async with contextlib.aclosing(Template(IMPORTS)) as template:
            while True:
                connection = _Connection(self._settings, run_id, template)
                try:
                    why = await self._connected(connection, run_id)
                except (UserError, OSError) as error:
                    why = str(error)
                except grpc.aio.AioRpcError as error:
                    why = describe(error)
                tries = 0 if connection.heard else tries + 1
                seconds = pause_s(tries)
                logger.info(
                    "this worker cannot run group managers at the moment: %s; next try in %.1f s", why, seconds
                )
                await asyncio.sleep(seconds)

    async def _connected(self, connection: _Connection, run_id: str) -> str:
        """One connection, to its end; returns why it ended. Raises UserError, OSError or AioRpcError."""
        channel = await self._channels.to(self._settings.top_server, TOP_SERVER)
        host = stream(channel, "/fedgsp.v1.HostingService/Host", hosting_pb2.HostOrder)
        async with connection:
            first, question = Hosting(self._name, run_id, connection.machine), self._question()
            ticket = question.ticket(Verb.JOIN, node(self._name)) if question is not None else b""
            call = host(connection.said(first), metadata=shown(ticket))
            admitted = False
            try:
                # The node closes its channel before it connects anew, which cancels this call.
                with cancelled_elsewhere():
                    async for proto in call:
                        if isinstance(proto, Unreadable):
                            return f"what the top server said {proto.why}"
                        order = wire.decode(HostOrder, proto).kind
                        if isinstance(order, Admitted):
                            admitted = True
                            if question is not None:
                                question.check(order.proof)
                        elif not admitted:
                            return "the top server asked for something before it admitted this worker"
                        else:
                            connection.do(order)
            finally:
                call.cancel()
        return "the connection was closed"


class _Connection(contextlib.AbstractAsyncContextManager["_Connection"]):
    """The managers that the top server has asked for by one connection; they end with the block."""

    def __init__(self, settings: NodeSettings, run_id: str, template: Template) -> None:
        self._settings = settings
        self._run_id = run_id
        self._template = template
        #: Where managers listen, and the host by which others dial them.
        self._listen, _ = split_address(settings.peer_listen or "127.0.0.1:0")
        self.machine, _ = split_address(settings.advertise or f"{self._listen}:0")
        assert settings.state_dir is not None  # see `NodeSettings.check_together`
        #: For their certificates. If this process is killed, it is cleared when the worker starts again.
        self._folder = settings.state_dir / KEYS
        self._says: asyncio.Queue[Any] = asyncio.Queue()
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._children: dict[str, Child] = {}
        self._ending: set[asyncio.Task[int]] = set()
        #: Whether the top server has said something.
        self.heard = False

    async def said(self, first: Hosting) -> AsyncIterator[hosting_pb2.HostMessage]:
        """What the top server is told; ends never, because the stream stays open."""
        yield wire.encode(HostMessage(first))
        while True:
            yield wire.encode(HostMessage(await self._says.get()))

    def do(self, order: StartManager | StopManager | None) -> None:
        """Carries out what the top server asks for."""
        self.heard = True
        if isinstance(order, StartManager) and not is_name(order.manager):  # it becomes the name of a file
            self._says.put_nowait(ManagerEnded(order.manager, "its name is none"))
        elif isinstance(order, StartManager) and order.manager not in self._lives:
            life = asyncio.create_task(self._live(order), name=f"manager {order.manager}")
            self._lives[order.manager] = life
        elif isinstance(order, StopManager) and order.manager in self._children:
            ending = asyncio.create_task(stop(self._children[order.manager], order.grace_s))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        elif isinstance(order, StopManager) and order.manager in self._lives:
            self._lives[order.manager].cancel()

    async def __aenter__(self) -> Self:
        self._clear()  # what a worker left behind that was killed
        await self._template.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await to_the_end(self._close())

    async def _close(self) -> None:
        for life in self._lives.values():
            life.cancel()
        await asyncio.gather(*self._lives.values(), *self._ending, return_exceptions=True)
        self._clear()

    def _clear(self) -> None:
        if self._folder.is_symlink():  # the keys would be written elsewhere
            self._folder.unlink()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _live(self, order: StartManager) -> None:
        """The life of a manager, which is told to the top server."""
        name, reason = order.manager, ""
        try:
            child = await self._template.spawn([*COMMAND, *arguments_of(self._of(order))], _LOG)
            child.tell(order.run_key.hex())
            try:
                address = await ready_line(child, f"group manager {name}", None)
                self._children[name] = child
                self._says.put_nowait(ManagerReady(name, address, child.pid))
                reason = f"exit code {await child.wait()}"
            finally:
                self._children.pop(name, None)
                await to_the_end(stop(child))
        except UserError as error:
            reason = error.what
        except OSError as error:
            reason = f"it could not be started: {error}"
        except asyncio.CancelledError:
            reason = "it was stopped"
            raise
        finally:
            (self._folder / f"{name}.pem").unlink(missing_ok=True)
            self._lives.pop(name, None)
            self._says.put_nowait(ManagerEnded(name, reason))

    def _of(self, order: StartManager) -> ManagerSettings:
        """The settings of a manager; its certificate becomes a file that only this user can read."""
        settings = self._settings
        found = ManagerSettings(
            **settings.for_children,
            name=order.manager,
            listen=f"{self._listen}:0",
            advertise=f"{self.machine}:0",
            top_host=split_address(settings.top_server)[0],
            run=self._run_id,
        )
        if not order.certificate:
            return found
        private(self._folder)
        own = self._folder / f"{order.manager}.pem"
        write_secret(own, order.certificate, lasting=False)
        return dataclasses.replace(found, tls_cert=own, tls_key=own)
