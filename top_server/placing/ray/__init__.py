"""Place `ray`: workers in a Ray cluster.

Three processes take part:

- The top server has a `place.Ray`, which decides. It loads nothing of Ray.
- The driver (`driver.py`) is its child, and the only process that is a driver of Ray. Ray ends a driver whose cluster
  fails, and unpickles what machines of the cluster send: neither may happen to the top server.
- On each machine, an actor (`machine.py`) runs a worker as its child. So the worker has signals and an event loop of
  its own, and ends with the actor, whatever ends that.

The top server and the driver exchange lines of JSON (`lines.py`).
"""
