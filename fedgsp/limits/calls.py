"""How many calls of each RPC a server carries out at once, and how long it waits for what a caller sends."""

from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor

from fedgsp.identity import Identity, Role
from fedgsp.v1 import (
    check_pb2,
    enrolment_pb2,
    group_pb2,
    grouping_pb2,
    hosting_pb2,
    membership_pb2,
    model_pb2,
    order_pb2,
)

#: Longest wait for the first message of any call, in seconds. Callers know it when they call.
FIRST_MESSAGE_S = 15.0
#: Calls of one RPC that have not sent a message yet: in all, and of one caller. A node sends its first one at once.
MOST_SILENT, MOST_SILENT_OF_PEER = 4_096, 2_048
#: Nodes of a run, or of one group, with a few that are being replaced: in all, and of one machine, where a run may
#: simulate all of its nodes.
_NODES, _OF_MACHINE = 24_000, 21_000
#: Calls of a node or worker that needs one of them, by its certificate: it may come back, again and again, before its
#: older connections are known as lost.
_OF_NODE = 8


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of one RPC at one server.

    A peer is who its certificate names, or else an address, which several nodes may share. One peer has less than all
    calls, unless only the top server may call. `message` is the kind that callers send; None for an RPC whose handler
    reads bytes and counts for itself. With `silence_s`, a caller that pauses for longer loses its call. `of_node` is
    the limit of a peer whose certificate is that of one node or worker; None: that of other peers.
    """

    at_once: int
    of_peer: int
    message: Descriptor | None
    silence_s: float | None = None
    of_node: int | None = None

    def share(self, proven: Identity | None) -> int:
        """Calls at once of one peer, by whom its certificate names; None without TLS.

        Local nodes may run with the certificate of the top server, so that it counts as an address does.
        """
        of_node = proven is not None and proven.role in (Role.NODE, Role.WORKER)
        return self.of_node if of_node and self.of_node is not None else self.of_peer


#: RPC -> its limits. Every RPC of `protos/` is here.
ALLOWANCES: dict[str, Allowance] = {
    # A node says hello and then only listens.
    "/fedgsp.v1.MembershipService/Join": Allowance(
        _NODES, _OF_MACHINE, membership_pb2.NodeMessage.DESCRIPTOR, of_node=_OF_NODE
    ),
    # One stream of each worker that runs managers.
    "/fedgsp.v1.HostingService/Host": Allowance(
        _NODES, _OF_MACHINE, hosting_pb2.HostMessage.DESCRIPTOR, of_node=_OF_NODE
    ),
    # A site checks its node once or twice before a run; each call ends within `checking.servicer.MOST_S`.
    "/fedgsp.v1.CheckService/Check": Allowance(64, 16, check_pb2.CheckQuestion.DESCRIPTOR),
    # A node without work has nothing to report.
    "/fedgsp.v1.OrderService/Attach": Allowance(
        _NODES, _OF_MACHINE, order_pb2.NodeReport.DESCRIPTOR, of_node=_OF_NODE
    ),
    # A fetch of a promised model waits, one for each hop of a chain, and two where its reader is on another machine.
    # Its receipts come while chunks go; see `model_streams`, which has the deadlines of both.
    "/fedgsp.v1.ModelService/Fetch": Allowance(_NODES, 10_000, model_pb2.FetchRequest.DESCRIPTOR),
    # A manager asks for few models at once. `model_streams` counts the items of headers, and waits for chunks.
    "/fedgsp.v1.ModelService/Upload": Allowance(4_096, 1_024, None),
    # Only the top server calls: once for each group, and a manager may lead all groups of a round.
    "/fedgsp.v1.GroupService/RunGroup": Allowance(_NODES, _NODES, group_pb2.RunGroupRequest.DESCRIPTOR),
    "/fedgsp.v1.GroupService/Forget": Allowance(256, 256, order_pb2.Release.DESCRIPTOR),
    "/fedgsp.v1.GroupService/Revoke": Allowance(256, 256, enrolment_pb2.Revoked.DESCRIPTOR),
    # Each call signs a certificate and writes the registry. A node makes one call in days.
    "/fedgsp.v1.EnrolmentService/Enrol": Allowance(64, 16, enrolment_pb2.CertificateRequest.DESCRIPTOR),
    "/fedgsp.v1.EnrolmentService/Renew": Allowance(64, 16, enrolment_pb2.CertificateRequest.DESCRIPTOR),
    # Each question may take gigabytes.
    "/fedgsp.v1.GroupingService/Assign": Allowance(8, 4, grouping_pb2.AssignRequest.DESCRIPTOR, silence_s=30.0),
}
