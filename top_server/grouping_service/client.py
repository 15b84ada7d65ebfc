"""The client of a grouping service: asks any server that speaks the contract of `protos/`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio
import numpy as np
from numpy.typing import NDArray

from fedgsp.channels import describe
from fedgsp.errors import PeerError
from fedgsp.v1 import grouping_pb2, grouping_pb2_grpc
from top_server.grouping import GroupingRequest, Plan

#: Bytes of matrix rows in one message.
ROWS_BYTES = 1024 * 1024
#: The longest text about a choice that is kept.
MOST_CHARACTERS = 1000
#: How long a service may take to answer.
ASSIGN_TIMEOUT_S = 600.0


async def assign(channel: grpc.aio.Channel, address: str, grouping: str, request: GroupingRequest) -> Plan:
    """The plan of the grouping service at `address`; raises PeerError if there is no answer, or not a valid plan."""
    stub = grouping_pb2_grpc.GroupingServiceStub(channel)
    try:
        answer = await stub.Assign(_parts(grouping, request), timeout=ASSIGN_TIMEOUT_S)
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
        raise PeerError(f"the grouping service at {address} answered what cannot be read", "mend that service")
    groups = tuple(tuple(int(client) for client in group.clients) for group in answer.groups)
    busy = {client for group in groups for client in group}
    idle = tuple(client for client in request.clients if client not in busy)
    plan = Plan(groups, idle, _line(answer.note), _line(answer.warning))
    try:
        plan.check(request)
    except ValueError as error:
        raise PeerError(
            f"the grouping service at {address} answered a wrong plan: {error}", "mend that service"
        ) from error
    return plan


def _line(text: str) -> str:
    """A text from another process as one line that a log can show."""
    return "".join(character if character.isprintable() else " " for character in text[:MOST_CHARACTERS])


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
