"""What the top server asks a group manager."""

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import grpc.aio

from fedgsp import wire
from fedgsp.access import shown
from fedgsp.channels import describe
from fedgsp.errors import PeerError
from fedgsp.identity import TOP_SERVER, manager
from fedgsp.messages import (
    Failure,
    FailureCode,
    GroupEvent,
    GroupResult,
    ModelRef,
    Release,
    Revoked,
    RunGroupRequest,
    TensorSpec,
)
from fedgsp.model_service import fetch
from fedgsp.spill import growing_room
from fedgsp.tickets import Issuer, Ticket, Verb
from fedgsp.v1 import group_pb2_grpc
from fedgsp.weights import Weights, WeightsError

logger = logging.getLogger(__name__)

FORGET_TIMEOUT_S = 10.0
REVOKE_TIMEOUT_S = 5.0


class ManagerClient:
    """One manager, over its channel. Losses and refusals are returned as values."""

    def __init__(self, name: str, dial: Callable[[], Awaitable[grpc.aio.Channel]], issuer: Issuer) -> None:
        """`dial` is `Channels.to` for this manager. After a renewal of certificates it returns another channel."""
        self._name = name
        self._dial = dial
        self._issuer = issuer
        self._leading = shown(self._ticket(Verb.LEAD, name))

    async def run_group(
        self, request: RunGroupRequest, on_event: Callable[[GroupEvent], None]
    ) -> GroupResult | Failure:
        """Runs a group to its end; the manager watches its members and gives up by itself."""
        try:
            stub = await self._stub()
        except PeerError as error:
            return Failure(FailureCode.UNREACHABLE, f"manager {self._name}: {error}")
        call = stub.RunGroup(wire.encode(request), metadata=self._leading)
        try:
            async for proto in call:
                if proto is None:  # so gRPC says that it cannot be read
                    return Failure(FailureCode.BAD_STREAM, f"manager {self._name} said what cannot be read")
                event = wire.decode(GroupEvent, proto)
                if isinstance(event.kind, GroupResult | Failure):
                    return event.kind
                on_event(event)
        except grpc.aio.AioRpcError as error:
            refused = error.code() is grpc.StatusCode.INVALID_ARGUMENT
            return Failure(
                FailureCode.BAD_ORDER if refused else FailureCode.UNREACHABLE,
                f"manager {self._name}: {describe(error)}",
            )
        finally:
            call.cancel()
        return Failure(FailureCode.BAD_STREAM, f"manager {self._name} ended the group without a result")

    async def take(self, ref: ModelRef, tensors: tuple[TensorSpec, ...] | None, max_bytes: int) -> Weights | Failure:
        """Fetches a group's model, which must have the reported digest.

        The manager may forget the model whether it is usable or not.
        """
        try:
            taken: Weights | Failure = await fetch(
                await self._dial(),
                ref.id,
                tensors,
                max_bytes,
                make_room=growing_room,
                promised=False,
                ticket=self._ticket(Verb.FETCH, ref.id),
                digest=ref.digest,
            )
        except PeerError as error:
            return Failure(FailureCode.UNREACHABLE, f"manager {self._name}: {error}")
        except WeightsError as error:
            taken = error.failure
            if taken.code is FailureCode.UNREACHABLE:
                return taken  # another dial would only take as long again
        await self._tell("Forget", Release((ref.id,)), FORGET_TIMEOUT_S, f"may still hold model={ref.id}")
        return taken

    async def revoke(self, enrolments: Collection[str]) -> bool:
        """Tells the manager which enrolments are not good any more; returns whether it knows now."""
        return await self._tell("Revoke", Revoked(tuple(enrolments)), REVOKE_TIMEOUT_S, "does not take a revocation")

    async def _tell(self, rpc: str, message: Release | Revoked, timeout_s: float, otherwise: str) -> bool:
        """Whether the manager has heard a message; if not, the log says what follows: `otherwise`."""
        try:
            await getattr(await self._stub(), rpc)(wire.encode(message), timeout=timeout_s, metadata=self._leading)
        except (PeerError, grpc.aio.AioRpcError) as error:
            why = str(error) if isinstance(error, PeerError) else describe(error)
            logger.warning("manager=%s %s: %s", self._name, otherwise, why)
            return False
        return True

    async def _stub(self) -> Any:
        return group_pb2_grpc.GroupServiceStub(await self._dial())

    def _ticket(self, verb: Verb, thing: str) -> bytes:
        return self._issuer.ticket(manager(self._name), Ticket(verb, thing, TOP_SERVER))
