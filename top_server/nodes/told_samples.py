"""How many samples clients had when their nodes joined: a node that comes back with other numbers has other data."""

import logging

from fedgsp.messages import Hello, HostedClient
from fedgsp.words import counted
from top_server.nodes.admission import MOST_CLIENTS

logger = logging.getLogger(__name__)

#: Most clients that are named.
_MOST_NAMED = 5
#: Training, test and validation samples.
_PARTS = ("training sample", "test sample", "validation sample")
_Numbers = tuple[int, int, int]


class ToldSamples:
    """The numbers of samples of each client that its node told last; of no more clients than a run can have."""

    def __init__(self) -> None:
        self._last: dict[int, _Numbers] = {}

    @property
    def training(self) -> dict[int, int]:
        """The training samples of each client."""
        return {client: numbers[0] for client, numbers in self._last.items()}

    def changes(self, hello: Hello) -> str:
        """What a node tells otherwise than at the last join of these clients, of which it warns; empty if nothing.

        The node is not refused: data may grow or be corrected during a run.
        """
        last, told = self._last, dict[int, str]()
        for hosted in hello.clients:
            client, now = hosted.client, _numbers(hosted)
            if text := _change(last.get(client, now), now):
                told[client] = text
            if client in last or len(last) < MOST_CLIENTS:
                last[client] = now
        if not told:
            return ""
        named = [f"client {client} {told[client]}" for client in list(told)[:_MOST_NAMED]]
        more = [counted(len(told) - _MOST_NAMED, "more client")] if len(told) > _MOST_NAMED else []
        text = "; ".join(named + more)
        logger.warning("node %s has joined with other numbers of samples than before: %s", hello.node, text)
        return text


def _numbers(hosted: HostedClient) -> _Numbers:
    return hosted.train_samples, hosted.test_samples, hosted.validation_samples


def _change(before: _Numbers, now: _Numbers) -> str:
    """The parts whose numbers differ."""
    parts = zip(before, now, _PARTS, strict=True)
    return ", ".join(f"had {counted(old, noun)}, now {new}" for old, new, noun in parts if old != new)
