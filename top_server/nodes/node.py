"""A node that has joined a run, as the top server sees it."""

import asyncio
from dataclasses import dataclass, field

from fedgsp.messages import AttachTo, Failure, Hello, Leave, Revoked, Welcome
from fedgsp.security.access import NOBODY, Caller


@dataclass(slots=True)
class Node:
    """A node that joined. None in its `outbox` ends its stream."""

    hello: Hello
    #: Who has made its connection, with which certificate.
    caller: Caller = NOBODY
    outbox: asyncio.Queue[Welcome | Failure | AttachTo | Leave | Revoked | None] = field(default_factory=asyncio.Queue)
    #: The managers that it was told to dial, by name.
    managers: dict[str, AttachTo] = field(default_factory=dict)
    #: Samples of all its clients.
    samples: int = field(init=False)

    def __post_init__(self) -> None:
        self.samples = sum(one.train_samples + one.test_samples + one.validation_samples for one in self.hello.clients)

    def dials(self, to: AttachTo) -> bool:
        """Notes a manager that it is told to dial; returns whether it was not told so before.

        An earlier manager at that address has ended, and its port has another owner. The node is told of it no more.
        """
        new = to.manager not in self.managers
        for name in [name for name, one in self.managers.items() if one.address == to.address and name != to.manager]:
            del self.managers[name]
        self.managers[to.manager] = to
        return new
