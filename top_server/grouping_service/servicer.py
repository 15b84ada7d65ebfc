"""Our own grouping service: it answers with the groupings of this package."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc.aio
import numpy as np
from numpy.typing import NDArray

from fedgsp.channels import SHUTDOWN_GRACE_S, refuse, start_server
from fedgsp.errors import UserError
from fedgsp.tls import Tls
from fedgsp.v1 import grouping_pb2, grouping_pb2_grpc
from top_server.grouping import GROUPINGS, GroupingRequest

#: How long a question may take to arrive.
READ_TIMEOUT_S = 600.0
#: The most bytes of matrices that one question may have: 20,000 x 20,000 in float64.
MAX_MATRIX_BYTES = 4 * 1024**3
_DTYPES = ("int64", "float64", "float32")


class GroupingServicer(grouping_pb2_grpc.GroupingServiceServicer):
    """Answers with the groupings of this package."""

    async def Assign(  # noqa: N802
        self, requests: AsyncIterator[grouping_pb2.AssignRequest], context: grpc.aio.ServicerContext
    ) -> grouping_pb2.AssignResponse:
        """One plan for one question."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                name, request = await _read(requests)
            if name not in GROUPINGS:
                raise ValueError(f"unknown grouping {name!r}; this service knows {', '.join(GROUPINGS)}")
            plan = await asyncio.to_thread(GROUPINGS[name], request)
        except TimeoutError:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "the whole question did not come in time")
        except (ValueError, OverflowError, UserError) as error:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error), aiter(requests))
        groups = [grouping_pb2.ClientGroup(clients=group) for group in plan.groups]
        return grouping_pb2.AssignResponse(groups=groups, note=plan.note, warning=plan.warning)


async def _read(requests: AsyncIterator[grouping_pb2.AssignRequest]) -> tuple[str, GroupingRequest]:
    stream = aiter(requests)
    first = await anext(stream, None)
    if first is None or first.WhichOneof("part") != "question":
        raise ValueError("the first part must be the question")
    question = first.question
    sizes = _sizes(question)
    buffers = {name: bytearray() for name in sizes}
    async for part in stream:
        if not part.rows.data or part.rows.name not in buffers:
            raise ValueError("after the question come rows of the matrices that it names")
        buffers[part.rows.name] += part.rows.data
        if len(buffers[part.rows.name]) > sizes[part.rows.name]:
            raise ValueError(f"more rows of matrix {part.rows.name!r} than announced")
    matrices: dict[str, NDArray[np.generic]] = {}
    for spec in question.matrices:
        if len(buffers[spec.name]) != sizes[spec.name]:
            raise ValueError(f"matrix {spec.name!r} was cut short")
        matrices[spec.name] = np.frombuffer(buffers[spec.name], spec.dtype).reshape(spec.rows, spec.columns)
    histograms = matrices.pop("histograms", None)
    request = GroupingRequest(
        round=question.round,
        groups=question.groups,
        seed=question.seed,
        clients=tuple(question.clients),
        sizes=np.array(question.sizes, np.int64),
        histograms=histograms,  # type: ignore[arg-type]
        matrices=matrices,  # type: ignore[arg-type]
        options=dict(question.options),
        newcomers=tuple(question.newcomers),
        settled=tuple(tuple(group.clients) for group in question.settled),
        learning_rate=question.learning_rate if question.HasField("learning_rate") else 1.0,
    )
    return question.grouping, request


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


async def serve(listen: str, tls: Tls | None = None) -> None:
    """Serves the groupings of this package until stopped; writes its address to standard output."""
    server, address = await start_server(
        listen,
        [lambda server: grouping_pb2_grpc.add_GroupingServiceServicer_to_server(GroupingServicer(), server)],
        tls,
    )
    sys.stdout.write(f"listening on {address}\n")
    sys.stdout.flush()
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop(SHUTDOWN_GRACE_S)
