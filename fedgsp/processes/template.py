"""A process that imports modules once, and forks itself for every process that is asked for.

A start by fork takes some milliseconds where imports take up to seconds, and the forked processes share the memory of
what was imported. `fedgsp.processes.children.Template` starts this program and talks to it through its standard input,
a socket:

- A request is a line of JSON, `["group_manager", "--name", "m0"]`: a module, which becomes the main program, and its
  arguments. Three file descriptors come with it: the standard input, output and error of the new process.
- Its answer is a line `[PID, null]`. When the new process has ended, the line `[PID, EXIT_CODE]` follows.
- If the machine lacks what a new process needs, the answer is `[0, ERRNO]`. The processes that run go on.

The template must not start a thread or use gRPC: a forked process would inherit their locks in any state.
"""

import contextlib
import errno
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys

import numpy as np
from setproctitle import setproctitle

from fedgsp.visible import visible

STREAMS = 3
#: Number of bytes that are read from the socket at once.
CHUNK = 65536


def main() -> None:
    """Imports the modules that the command line names, and serves requests until the socket is closed."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # the garbage collector would write to, and so copy, the memory that processes share
    asker = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, lambda *_: _report_ended(asker))
    while True:
        data, streams, _, _ = socket.recv_fds(asker, CHUNK, STREAMS)
        while data and not data.endswith(b"\n"):
            data += asker.recv(CHUNK)
        if not data:
            return
        # Until the answer is sent, the end of the new process must wait.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        try:
            if len(streams) < STREAMS:  # this process may have no more descriptors
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if not (pid := os.fork()):
                break
            answer = b"[%d, null]\n" % pid
        except OSError as error:
            answer = b"[0, %d]\n" % (error.errno or errno.EAGAIN)
        for stream in streams:
            os.close(stream)
        asker.sendall(answer)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    asker.close()  # here is the new process; its errors are not those of the fork
    _become(json.loads(data), streams)


def _report_ended(asker: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError, ConnectionError):  # no child is left, or nobody listens any more
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            asker.sendall(b"[%d, %d]\n" % (ended[0], os.waitstatus_to_exitcode(ended[1])))


def _become(command: list[str], streams: list[int]) -> None:
    """Runs a module as the main program, in a new session: Ctrl-C does not reach it."""
    os.setsid()
    _keep_priority()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    np.random.seed()  # all processes of one template would draw the same numbers
    sys.argv = command
    setproctitle(visible(" ".join(command)))  # what `ps` and `pkill -f` see; a path may have bytes that are not UTF-8
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def _keep_priority() -> None:
    """Lets the nice value of this process count in its new session, too.

    Linux shares processors out between sessions first, and by nice values only inside of a session (`man 7 sched`,
    autogroup). Otherwise a run that was started with `nice` would take as much as all other work of the machine.
    """
    with contextlib.suppress(OSError, AttributeError):  # a system without autogroups, or without nice values
        priority = os.getpriority(os.PRIO_PROCESS, 0)
        if priority > 0:
            with open("/proc/self/autogroup", "w") as group:
                group.write(str(priority))


if __name__ == "__main__":
    main()
