"""From where members get the models that they start from, by the relay mode and the ledger."""

from __future__ import annotations

from fedgsp.messages import Member, RelayMode, Source, SourceKind, Start
from group_manager.group import Group
from group_manager.ledger import Origin


def given(group: Group, member: Member, keep: bool) -> Start:
    """The start that the request gives a member: its own, or else that of the group.

    `keep`: the node keeps the model, because several of its clients start from it.
    """
    request = group.request
    ref = member.start.ref if member.start is not None else request.start
    assert ref is not None
    record = group.ledger.look(ref.id)
    if record.origin is Origin.AT_NODE and record.node == member.node:
        return Start(ref.id, (Source(SourceKind.OWN, member.node),), without_head=request.without_head)
    if keep:
        group.ledger.keep(ref.id, member.node)
    by_manager = request.relay is RelayMode.MANAGER or record.origin is not Origin.TOP_SERVER
    top_server = Source(SourceKind.TOP_SERVER, "top server", request.start_address)
    return Start(ref.id, (group.manager if by_manager else top_server,), keep, request.without_head)


def trained_by(group: Group, holder: Member, model_id: str, reader: Member) -> Start:
    """The model that another member has trained, or will train."""
    relay, sources = group.request.relay, [Source(SourceKind.LOCAL, holder.node)]
    if holder.node != reader.node:
        dialled = bool(holder.peer_address) and relay is not RelayMode.MANAGER
        sources = [Source(SourceKind.NODE, holder.node, holder.peer_address)] if dialled else []
        if relay is not RelayMode.DIRECT:
            if dialled:
                group.ledger.expect_direct(model_id, reader, sources[0])
            sources.append(group.manager)
    return Start(model_id, tuple(sources), without_head=group.request.without_head)
