"""What two or more processes must agree on, and the user's surface (Task)."""

from fedgsp.task import ClientData, Split, Task

__all__ = ["ClientData", "Split", "Task"]
__version__ = "0.1.0"
