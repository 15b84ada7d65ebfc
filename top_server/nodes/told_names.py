"""Which names of clients are recorded when a node joins: what is new of them, and of each node only so many bytes."""

from collections import Counter

from fedgsp.messages import Hello
from top_server.nodes.declared import names_of

#: Bytes of names that are recorded of a node. It may join 30 times a minute, and give other names each time.
MOST_BYTES = 4 << 20


class ToldNames:
    """The names that were recorded, by node."""

    def __init__(self) -> None:
        self._last: dict[str, dict[int, str]] = {}
        self._bytes: Counter[str] = Counter()

    def news(self, hello: Hello) -> dict[int, str]:
        """The names that are not those of the node's last join; none if it has told too many bytes of them."""
        last, names = self._last.get(hello.node, {}), names_of([hello])
        news = {client: name for client, name in names.items() if last.get(client) != name}
        size = sum(len(name.encode()) for name in news.values())
        if self._bytes[hello.node] + size > MOST_BYTES:
            return {}
        self._bytes[hello.node] += size
        self._last[hello.node] = {**last, **news}
        return news
