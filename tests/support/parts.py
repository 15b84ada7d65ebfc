"""What all clients of a task hold."""

from __future__ import annotations

from fedgsp.task import ClientData, Task


def parts(task: Task) -> list[ClientData]:
    """The data of every client, in their order."""
    return [task.data(client) for client in range(task.num_clients)]
