"""After how long a silence a peer is gone: dead, frozen or cut off."""

from __future__ import annotations

#: Seconds without a word, unless the run says otherwise.
LOST_AFTER_S = 3.5
#: Pings more often than a few times a second would only load the link.
LEAST_LOST_AFTER_S = 1.0
MOST_LOST_AFTER_S = 600.0


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
