"""The main coroutine of a group manager."""

from __future__ import annotations

import asyncio
import sys

from fedgsp.channels import SHUTDOWN_GRACE_S, Channels, start_server
from fedgsp.liveness import LOST_AFTER_S
from fedgsp.messages import Source, SourceKind
from fedgsp.model_service import ModelServicer
from fedgsp.model_store import ModelStore
from fedgsp.spill import spilling_room
from fedgsp.tls import Tls
from fedgsp.v1 import group_pb2_grpc, order_pb2_grpc
from group_manager.members import Members
from group_manager.servicers import GroupServicer, OrderServicer


async def run(name: str, run_id: str, listen: str, tls: Tls | None = None, lost_after_s: float = LOST_AFTER_S) -> None:
    """Writes the bound address to standard output and serves until it is cancelled."""
    members, store = Members(), ModelStore()
    async with Channels(tls, lost_after_s) as channels:
        server, address = await start_server(listen, [], tls, lost_after_s)
        groups = GroupServicer(members, store, channels, Source(SourceKind.MANAGER, name, address))
        models = ModelServicer(store, groups.wanted, groups.expected, lambda: groups.max_model_bytes, spilling_room)
        group_pb2_grpc.add_GroupServiceServicer_to_server(groups, server)
        order_pb2_grpc.add_OrderServiceServicer_to_server(OrderServicer(members, name, run_id), server)
        models.add_to(server)
        sys.stdout.write(address + "\n")
        sys.stdout.flush()
        try:
            await asyncio.Event().wait()
        finally:
            await server.stop(SHUTDOWN_GRACE_S)
