"""Refuses what a task, or its user, gives that cannot be used: TaskError, unless a condition is true."""

from fedgsp.errors import TaskError

require = TaskError.require
