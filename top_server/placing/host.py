"""The name by which other machines reach this one."""

import socket


def this_host() -> str:
    """The name of this machine as its network knows it: with its domain, if the name alone does not lead to it."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return socket.getfqdn()
    return name
