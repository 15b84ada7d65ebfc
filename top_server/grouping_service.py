"""Groupings over the wire, by the contract of `protos/`: asking any grouping service, and our own service."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import grpc.aio
import numpy as np
from numpy.typing import NDArray

from fedgsp.connections.channels import SHUTDOWN_GRACE_S, describe, refuse, start_server
from fedgsp.errors import PeerError, UserError
from fedgsp.identity import TOP_SERVER
from fedgsp.security import local_key
from fedgsp.security.access import AccessControl, shown
from fedgsp.security.tickets import Door, Ticket, Verb, issue
from fedgsp.security.tls import Tls
from fedgsp.v1 import grouping_pb2, grouping_pb2_grpc
from fedgsp.visible import visible
from top_server.grouping import GROUPINGS, GroupingRequest, Plan

#: Bytes of matrix rows in one message.
ROWS_BYTES = 1024 * 1024
#: The longest text about a choice that is kept.
MOST_CHARACTERS = 1000
#: How long a service may take to answer.
ASSIGN_TIMEOUT_S = 600.0
#: How long a question may take to arrive: this time, and a second for each of so many bytes of its matrices.
READ_TIMEOUT_S, BYTES_PER_S = 60.0, 1_000_000
#: The most bytes of matrices that one question may have, and all questions together: 20,000 x 20,000 in float64.
MAX_MATRIX_BYTES = 4 * 1024**3
_DTYPES = ("int64", "float64", "float32")


async def assign(channel: grpc.aio.Channel, address: str, grouping: str, request: GroupingRequest) -> Plan:
    """The plan of the grouping service at `address`; raises PeerError if there is no answer, or not a valid plan."""
    try:
        answer = await grouping_pb2_grpc.GroupingServiceStub(channel).Assign(
            _parts(grouping, request), timeout=ASSIGN_TIMEOUT_S, metadata=shown(_ticket(address))
        )
    except grpc.aio.AioRpcError as error:
        if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
            raise PeerError(
                f"the grouping service at {address} refused the question: {error.details()}",
                "change --grouping-option or the scheme",
            ) from error
        raise PeerError(
            f"the grouping service at {address} did not answer: {describe(error)}",
            "is a grouping service running there?",
        ) from error
    if answer is None:  # gRPC gives None for an answer that it cannot read
        raise PeerError(
            f"the grouping service at {address} sent an answer that cannot be read", "correct that service"
        )
    groups = tuple(tuple(int(client) for client in group.clients) for group in answer.groups)
    busy = {client for group in groups for client in group}
    idle = tuple(client for client in request.clients if client not in busy)
    plan = Plan(groups, idle, _line(answer.note), _line(answer.warning))
    try:
        plan.check(request)
    except ValueError as error:
        raise PeerError(
            f"the grouping service at {address} sent a wrong plan: {error}", "correct that service"
        ) from error
    return plan


def _ticket(address: str) -> bytes:
    """The ticket for a service of the same user on this machine; a service of another make may need none."""
    key = local_key.found(address)
    return issue(key, Ticket(Verb.ASK, "", TOP_SERVER)) if key else b""


def _line(text: str) -> str:
    """A text from another process as one line that a log can show."""
    return visible(text[:MOST_CHARACTERS])


async def _parts(grouping: str, request: GroupingRequest) -> AsyncIterator[grouping_pb2.AssignRequest]:
    matrices: dict[str, NDArray[np.generic]] = dict(request.matrices)
    if request.histograms is not None:
        matrices["histograms"] = request.histograms
    yield grouping_pb2.AssignRequest(
        question=grouping_pb2.AssignQuestion(
            grouping=grouping,
            round=request.round,
            groups=request.groups,
            seed=request.seed,
            clients=request.clients,
            sizes=request.sizes.tolist(),
            options=dict(request.options),
            matrices=[
                grouping_pb2.MatrixSpec(
                    name=name, dtype=matrix.dtype.name, rows=matrix.shape[0], columns=matrix.shape[1]
                )
                for name, matrix in matrices.items()
            ],
            newcomers=request.newcomers,
            settled=[grouping_pb2.ClientGroup(clients=group) for group in request.settled],
            learning_rate=request.learning_rate,
        )
    )
    for name, matrix in matrices.items():
        step = max(1, ROWS_BYTES // max(1, matrix[:1].nbytes))
        for first in range(0, len(matrix), step):
            data = np.ascontiguousarray(matrix[first : first + step]).tobytes()
            yield grouping_pb2.AssignRequest(rows=grouping_pb2.MatrixRows(name=name, data=data))


class GroupingServicer(grouping_pb2_grpc.GroupingServiceServicer):
    """Answers with the groupings of this package."""

    def __init__(self) -> None:
        self._reading = _Reading()

    async def Assign(  # noqa: N802
        self, requests: AsyncIterator[grouping_pb2.AssignRequest], context: grpc.aio.ServicerContext
    ) -> grouping_pb2.AssignResponse:
        """One plan for one question."""
        try:
            with self._reading.question() as keep:
                name, request = await _read(requests, keep)
                if name not in GROUPINGS:
                    raise ValueError(f"unknown grouping {name!r}; this service knows {', '.join(GROUPINGS)}")
                plan = await asyncio.to_thread(GROUPINGS[name], request)
        except TimeoutError:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "the whole question did not come in time")
        except (ValueError, OverflowError, UserError) as error:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error), aiter(requests))
        groups = [grouping_pb2.ClientGroup(clients=group) for group in plan.groups]
        return grouping_pb2.AssignResponse(groups=groups, note=plan.note, warning=plan.warning)


class _Reading:
    """Counts the bytes of matrices that all questions hold until it is answered."""

    def __init__(self) -> None:
        self._bytes = 0

    @contextlib.contextmanager
    def question(self) -> Iterator[Callable[[int], None]]:
        """Yields a function that counts further bytes of one question; ValueError if there are too many in all."""
        own = 0

        def keep(size: int) -> None:
            nonlocal own
            if self._bytes + size > MAX_MATRIX_BYTES:
                raise ValueError("this service has too many questions at once; ask again later")
            own += size
            self._bytes += size

        try:
            yield keep
        finally:
            self._bytes -= own


async def _read(
    requests: AsyncIterator[grouping_pb2.AssignRequest], keep: Callable[[int], None]
) -> tuple[str, GroupingRequest]:
    stream = aiter(requests)
    first = await anext(stream, None)
    if first is None or first.WhichOneof("part") != "question":
        raise ValueError("the first part must be the question")
    question = first.question
    sizes = _sizes(question)
    buffers = {name: bytearray() for name in sizes}
    async with asyncio.timeout(READ_TIMEOUT_S + sum(sizes.values()) / BYTES_PER_S):
        async for part in stream:
            if not part.rows.data or part.rows.name not in buffers:
                raise ValueError("after the question come rows of the matrices that it names")
            if len(buffers[part.rows.name]) + len(part.rows.data) > sizes[part.rows.name]:
                raise ValueError(f"more rows of matrix {part.rows.name!r} than announced")
            keep(len(part.rows.data))
            buffers[part.rows.name] += part.rows.data
    short = next((name for name, size in sizes.items() if len(buffers[name]) < size), None)
    if short is not None:
        raise ValueError(f"matrix {short!r} was cut short")
    matrices: dict[str, NDArray[np.generic]] = {
        spec.name: np.frombuffer(buffers[spec.name], spec.dtype).reshape(spec.rows, spec.columns)
        for spec in question.matrices
    }
    return question.grouping, GroupingRequest(
        round=question.round,
        groups=question.groups,
        seed=question.seed,
        clients=tuple(question.clients),
        sizes=np.array(question.sizes, np.int64),
        histograms=matrices.pop("histograms", None),  # type: ignore[arg-type]
        matrices=matrices,  # type: ignore[arg-type]
        options=dict(question.options),
        newcomers=tuple(question.newcomers),
        settled=tuple(tuple(group.clients) for group in question.settled),
        learning_rate=question.learning_rate if question.HasField("learning_rate") else 1.0,
    )


def _sizes(question: grouping_pb2.AssignQuestion) -> dict[str, int]:
    """Bytes of each matrix; raises ValueError, before anything is kept, for a matrix that no question may have."""
    sizes: dict[str, int] = {}
    for spec in question.matrices:
        if spec.dtype not in _DTYPES:
            raise ValueError(f"matrix {spec.name!r} has dtype {spec.dtype!r}; known: {', '.join(_DTYPES)}")
        if spec.name in sizes:
            raise ValueError(f"matrix {spec.name!r} is named twice")
        if spec.rows != len(question.clients):
            raise ValueError(f"matrix {spec.name!r} has {spec.rows} rows for {len(question.clients)} clients")
        sizes[spec.name] = spec.rows * spec.columns * np.dtype(spec.dtype).itemsize
        if sum(sizes.values()) > MAX_MATRIX_BYTES:
            raise ValueError(f"matrix {spec.name!r} of {spec.rows} x {spec.columns} is too large")
    return sizes


async def serve(listen: str, tls: Tls | None = None, insecure: bool = False) -> None:
    """Serves the groupings of this package until stopped; writes its address to standard output."""
    asking = Door()
    server, address = await start_server(
        listen,
        [lambda server: grouping_pb2_grpc.add_GroupingServiceServicer_to_server(GroupingServicer(), server)],
        AccessControl({Verb.ASK: asking}, tls is not None, without_ticket=[Verb.ASK] if tls or insecure else []),
        tls,
        insecure=insecure,
    )
    try:
        with local_key.offered(address) if tls is None else contextlib.nullcontext(b"") as key:
            asking.change(key)
            sys.stdout.write(f"listening on {address}\n")
            sys.stdout.flush()
            await asyncio.Event().wait()
    finally:
        await server.stop(SHUTDOWN_GRACE_S)
