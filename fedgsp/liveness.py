"""How long a peer may be silent before it is treated as lost: dead, frozen or disconnected."""

#: Default of --lost-after, in seconds.
LOST_AFTER_S = 3.5
#: Smallest value: more frequent pings would only load the link.
LEAST_LOST_AFTER_S = 1.0
#: Largest value: a transfer without progress has ended by then.
MOST_LOST_AFTER_S = 30.0
#: Longest wait for a connection, in seconds. A peer that cannot be dialled is served in another way.
MOST_DIAL_S = 5.0
#: Number of bytes that may be on their way to another machine, beside one chunk. The answer to a ping comes after
#: these bytes: a slow link that needs too long for them would be treated as lost although it works. gRPC alone would
#: widen the window until buffers are full. A link with a round trip of 20 ms still carries 13 MB/s.
WINDOW_BYTES = 256 * 1024
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", WINDOW_BYTES)]


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
