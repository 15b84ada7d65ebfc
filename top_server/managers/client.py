"""What the top server asks a group manager."""

import dataclasses
import functools
import hmac
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

import grpc
import grpc.aio

from fedgsp import wire
from fedgsp.connections.channels import describe
from fedgsp.connections.liveness import LOST_AFTER_S
from fedgsp.errors import PeerError
from fedgsp.identity import TOP_SERVER, manager
from fedgsp.limits.answers import Unreadable, stream
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
from fedgsp.security.access import QUESTION, shown
from fedgsp.security.proofs import UnprovenError, prove
from fedgsp.security.tickets import Issuer, Ticket, Verb
from fedgsp.tensors.spill import growing_room
from fedgsp.tensors.weights import Weights, WeightsError
from fedgsp.to_the_end import cancelled_elsewhere
from fedgsp.transfers.model_calls import fetch
from fedgsp.v1 import group_pb2, group_pb2_grpc
from fedgsp.within import within

logger = logging.getLogger(__name__)

FORGET_TIMEOUT_S = 10.0
REVOKE_TIMEOUT_S = 5.0
#: A manager that does not answer a question without work for so long is lost, in seconds; or for `--lost-after`.
ANSWER_TIMEOUT_S = 5.0
#: How long it may take to show that it is one of the run, in seconds. It does so at once, unless it was frozen.
PROOF_TIMEOUT_S = 60.0
#: Events of a group for each of its clients, and of each exchange of networks, at most: a client has a few.
MOST_EVENTS = 1000
#: Why a call is given up whose server does not know the keys of the run.
TAKEN = "another process has taken its port"
#: Failures of a transfer that do not show that its model is bad.
_DID_NOT_COME = (FailureCode.UNREACHABLE, FailureCode.STALLED)


@dataclasses.dataclass(frozen=True, slots=True)
class BrokenOff:
    """The call that ran a group, or a transfer of its result, ended too early for a reason that is not the group's."""

    reason: Failure
    #: Whether the manager itself is gone. If it is not, its other groups go on.
    lost: bool


def most_events(request: RunGroupRequest) -> int:
    """How many events a manager may tell of a group: each takes memory here, and some take a line of the record."""
    exchanges = request.discrimination.exchanges if request.discrimination is not None else 0
    return MOST_EVENTS * (1 + len(request.planned or request.members)) * (1 + exchanges)


def or_reason(taken: Weights | Failure | BrokenOff) -> Weights | Failure:
    """What was taken, for callers that do not ask for it elsewhere."""
    return taken.reason if isinstance(taken, BrokenOff) else taken


class ManagerClient:
    """One manager, over its channel. Losses and refusals are returned as values."""

    def __init__(
        self,
        name: str,
        dial: Callable[[], Awaitable[grpc.aio.Channel]],
        issuer: Issuer,
        lost_after_s: float = LOST_AFTER_S,
        dial_models: Callable[[], Awaitable[grpc.aio.Channel]] | None = None,
    ) -> None:
        """`dial` is `Channels.to` for this manager. After a renewal of certificates it returns another channel.

        `dial_models` returns the channel that carries models; without it, that of `dial` does.
        """
        self._answer_s = max(ANSWER_TIMEOUT_S, lost_after_s)
        self._name = name
        self._dial, self._dial_models = dial, dial_models or dial
        self._issuer = issuer
        self._leading = shown(self._ticket(Verb.LEAD, name))

    async def run_group(
        self, request: RunGroupRequest, on_event: Callable[[GroupEvent], None]
    ) -> GroupResult | Failure | BrokenOff:
        """Runs a group to its end; the manager watches its members and gives up by itself."""
        try:
            channel = await self._dial()
        except PeerError as error:
            return self._broken_off(str(error), lost=True)
        question = secrets.token_hex(16)
        run = stream(channel, "/fedgsp.v1.GroupService/RunGroup", group_pb2.GroupEvent, of_one=True)
        call, left = run(wire.encode(request), metadata=(*self._leading, (QUESTION, question))), most_events(request)
        try:
            with cancelled_elsewhere():  # if the manager is discarded, its channel is closed
                messages = aiter(call)
                if unproven := await self._unproven(call, messages, question):
                    return unproven
                async for proto in messages:
                    if isinstance(proto, Unreadable):
                        return Failure(FailureCode.BAD_STREAM, f"manager {self._name} said what {proto.why}")
                    event = wire.decode(GroupEvent, proto)
                    if isinstance(event.kind, GroupResult | Failure):
                        return event.kind
                    if not left:
                        return Failure(FailureCode.BAD_STREAM, f"manager {self._name} tells of its group without end")
                    left -= 1
                    on_event(event)
                return Failure(FailureCode.BAD_STREAM, f"manager {self._name} ended the group without a result")
            return self._broken_off("the connection was closed", lost=not await self.answers())
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                return Failure(FailureCode.BAD_ORDER, f"manager {self._name}: {describe(error)}")
            # Every other code says something about this group alone, if the manager still answers.
            gone = error.code() is grpc.StatusCode.UNAVAILABLE or not await self.answers()
            return self._broken_off(describe(error), gone)
        finally:
            call.cancel()

    async def _unproven(self, call: Any, messages: AsyncIterator[Any], question: str) -> BrokenOff | None:
        """Why the process at the address does not count as the manager, whatever it says; None if it is."""
        right = self._issuer.answer(TOP_SERVER, self._name, question)
        try:
            await within(PROOF_TIMEOUT_S, prove(call, messages, functools.partial(hmac.compare_digest, right)))
            return None
        except UnprovenError:
            why = TAKEN
        except TimeoutError:
            why = f"it did not show within {PROOF_TIMEOUT_S:.0f} s who it is"
        except grpc.aio.AioRpcError as error:  # anybody may refuse
            why = describe(error)
        return self._broken_off(why, lost=True)

    def _broken_off(self, why: str, lost: bool) -> BrokenOff:
        return BrokenOff(Failure(FailureCode.UNREACHABLE, f"manager {self._name}: {why}"), lost)

    async def take(
        self, ref: ModelRef, tensors: tuple[TensorSpec, ...] | None, max_bytes: int
    ) -> Weights | Failure | BrokenOff:
        """Fetches a group's model, which must have the reported digest.

        A transfer that breaks off is tried once more if the manager still answers. Then the manager is told to forget
        the model, whether it came or not. A Failure says what is wrong with the model.
        """
        taken = await self._fetch(ref, tensors, max_bytes)
        if isinstance(taken, BrokenOff):
            if not await self.answers():
                return dataclasses.replace(taken, lost=True)
            taken = await self._fetch(ref, tensors, max_bytes)
        await self._tell("Forget", Release((ref.id,)), FORGET_TIMEOUT_S, f"may still hold model={ref.id}")
        return taken

    async def _fetch(
        self, ref: ModelRef, tensors: tuple[TensorSpec, ...] | None, max_bytes: int
    ) -> Weights | Failure | BrokenOff:
        try:
            return await fetch(
                await self._dial_models(),
                ref.id,
                tensors,
                max_bytes,
                make_room=growing_room,
                promised=False,
                ticket=self._ticket(Verb.FETCH, ref.id),
                digest=ref.digest,
            )
        except PeerError as error:
            return self._broken_off(str(error), lost=False)
        except WeightsError as error:
            return BrokenOff(error.failure, lost=False) if error.failure.code in _DID_NOT_COME else error.failure

    async def answers(self) -> bool:
        """Whether the manager is there: it answers a question without work, though it may have failed at another."""
        return await self._tell("Forget", Release(()), self._answer_s, "does not answer")

    async def revoke(self, enrolments: Collection[str]) -> bool:
        """Tells the manager which enrolments are not good any more; returns whether it knows now."""
        return await self._tell("Revoke", Revoked(tuple(enrolments)), REVOKE_TIMEOUT_S, "does not take a revocation")

    async def _tell(self, rpc: str, message: Release | Revoked, timeout_s: float, otherwise: str) -> bool:
        """Whether the manager has heard a message; if not, the log says what follows: `otherwise`."""
        try:
            stub, proto = await self._stub(), wire.encode(message)
            with cancelled_elsewhere():  # the channel of a manager that is discarded is closed
                await getattr(stub, rpc)(proto, timeout=timeout_s, metadata=self._leading)
                return True
            why = "the connection was closed"
        except (PeerError, grpc.aio.AioRpcError) as error:
            why = str(error) if isinstance(error, PeerError) else describe(error)
        logger.warning("manager=%s %s: %s", self._name, otherwise, why)
        return False

    async def _stub(self) -> Any:
        return group_pb2_grpc.GroupServiceStub(await self._dial())

    def _ticket(self, verb: Verb, thing: str) -> bytes:
        return self._issuer.ticket(manager(self._name), Ticket(verb, thing, TOP_SERVER))
