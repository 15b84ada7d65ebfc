"""After how long a silence a peer is gone: dead, frozen or cut off."""

from __future__ import annotations

#: Seconds without a word, unless the run says otherwise.
LOST_AFTER_S = 3.5
#: Pings more often than a few times a second would only load the link.
LEAST_LOST_AFTER_S = 1.0
#: Silence within a transfer has ended it by then.
MOST_LOST_AFTER_S = 30.0
#: Longest wait for a connection, 20 s by default: whoever cannot be dialled is served in another way.
MOST_DIAL_S = 5.0
#: Bytes on their way to another machine and not read yet, beside one chunk. A ping's answer comes after these: a link
#: that needs longer for them than the answer may take would be given up while it works. gRPC itself widens the window
#: as long as that fills somebody's buffers. A link of 20 ms there and back still carries 13 MB a second.
WINDOW_BYTES = 256 * 1024
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", WINDOW_BYTES)]


def keepalive(lost_after_s: float) -> list[tuple[str, int]]:
    """gRPC's settings for both ends of a connection: a ping after a third of the time, an answer within the rest.

    A peer that lives answers from a thread of gRPC's own, however busy it is.
    """
    ping_ms = round(1000 * lost_after_s / 3)
    answer_ms = round(1000 * lost_after_s) - ping_ms
    return [
        ("grpc.keepalive_time_ms", ping_ms),
        ("grpc.keepalive_timeout_ms", answer_ms),
        ("grpc.http2.ping_timeout_ms", answer_ms),  # 60 s by default, whatever the keepalive timeout says
    ]
