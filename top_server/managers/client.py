"""What the top server asks a group manager."""

import logging
from collections.abc import Callable

import grpc.aio

from fedgsp import wire
from fedgsp.channels import describe
from fedgsp.messages import Failure, FailureCode, GroupEvent, GroupResult, Release, RunGroupRequest, TensorSpec
from fedgsp.model_service import fetch
from fedgsp.spill import growing_room
from fedgsp.v1 import group_pb2_grpc
from fedgsp.weights import Weights, WeightsError

logger = logging.getLogger(__name__)

FORGET_TIMEOUT_S = 10.0


class ManagerClient:
    """One manager, over its channel. Losses and refusals are returned as values."""

    def __init__(self, name: str, channel: grpc.aio.Channel) -> None:
        self._name = name
        self._channel = channel
        self._stub = group_pb2_grpc.GroupServiceStub(channel)

    async def run_group(
        self, request: RunGroupRequest, on_event: Callable[[GroupEvent], None]
    ) -> GroupResult | Failure:
        """Runs a group to its end; the manager watches its members and gives up by itself."""
        call = self._stub.RunGroup(wire.encode(request))
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

    async def take(self, model_id: str, tensors: tuple[TensorSpec, ...] | None, max_bytes: int) -> Weights | Failure:
        """Fetches a group's model; the manager may forget it whether it is usable or not."""
        try:
            taken: Weights | Failure = await fetch(
                self._channel, model_id, tensors, max_bytes, make_room=growing_room, promised=False
            )
        except WeightsError as error:
            taken = error.failure
            if taken.code is FailureCode.UNREACHABLE:
                return taken  # another dial would only take as long again
        try:
            await self._stub.Forget(wire.encode(Release((model_id,))), timeout=FORGET_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            logger.warning("manager=%s may still hold model=%s: %s", self._name, model_id, describe(error))
        return taken
