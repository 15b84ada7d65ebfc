"""How long a peer may be silent before it is treated as lost: dead, frozen or disconnected."""

#: Default of --lost-after, in seconds.
LOST_AFTER_S = 3.5
#: Smallest value: more frequent pings would only load the link.
LEAST_LOST_AFTER_S = 1.0
#: Largest value: a transfer without progress has ended by then.
MOST_LOST_AFTER_S = 30.0
#: After the end of its connection, a peer may come back within this share of --lost-after before it counts as gone. A
#: connection also ends because one of its ends was frozen. A dead peer is noticed within the sum of both times.
RETURN_SHARE, LEAST_RETURN_S = 0.4, 1.0
#: Longest wait for a connection, in seconds. A peer that cannot be dialled is served in another way.
MOST_DIAL_S = 5.0
#: After so many seconds without a connection, the next address of a host is tried beside the one before, as gRPC does
#: it. Behind a firewall that knows only IPv4, nothing ever answers at the IPv6 address, which comes first.
NEXT_ADDRESS_S = 0.25
#: gRPC's windows to another machine, in bytes. Orders and reports have a connection with a small window. Models have a
#: second one with a large window, of which `pacing` uses what the link carries. The window of a server is smaller,
#: because it also holds for callers that do not keep to this pace: it has what 1 Gbit/s carries in 0.3 s.
ORDER_WINDOW_BYTES = 256 * 1024
MODEL_WINDOW_BYTES = 64 * 1024 * 1024
SERVER_WINDOW_BYTES = 40 * 1024 * 1024


def return_s(lost_after_s: float) -> float:
    """How long a peer whose connection has ended may take to come back, in seconds."""
    return max(LEAST_RETURN_S, RETURN_SHARE * lost_after_s)


def window(size: int) -> list[tuple[str, int]]:
    """The gRPC settings for a window that does not change.

    gRPC would change it by pings of its own. Their answers come after the bytes that were sent before, so gRPC would
    take a slow link for a lost peer.
    """
    return [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", size)]


def keepalive(lost_after_s: float) -> list[tuple[str, int]]:
    """The gRPC settings of both ends of a connection: a ping after a third of the time, an answer within the rest.

    A thread of gRPC answers pings, so a busy peer answers too.
    """
    ping_ms = round(1000 * lost_after_s / 3)
    answer_ms = round(1000 * lost_after_s) - ping_ms
    return [
        ("grpc.keepalive_time_ms", ping_ms),
        ("grpc.keepalive_timeout_ms", answer_ms),
        ("grpc.http2.ping_timeout_ms", answer_ms),  # 60 s by default, whatever the keepalive timeout says
    ]
