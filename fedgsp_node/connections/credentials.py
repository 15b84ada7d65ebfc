"""Who this node is: its name, and the certificate that it shows."""

import os
import re
import socket

from fedgsp.connections.addresses import is_wildcard, split_address
from fedgsp.errors import ConfigError
from fedgsp.identity import NAME_RULE, Role, is_name
from fedgsp.processes.lifecycle import is_child
from fedgsp.security.tls import Tls, load
from fedgsp.settings.run import NodeSettings

#: What a host name may have and the name of a node may not.
_HOST_NAME = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]", re.ASCII)


def credentials(settings: NodeSettings) -> Tls | None:
    """The TLS credentials of this node; raises ConfigError if its certificate lacks the address that peers dial."""
    if settings.identity is not None:
        from fedgsp_node.enrolment import folder  # here: other nodes need no cryptography

        folder.check(settings.identity)
    found, dialled = load(settings.tls_files), settings.advertise or settings.peer_listen
    if found:
        # Local nodes of a run whose CA is kept elsewhere have the certificate of the top server that starts them.
        # Nobody else may hand it out: it counts for every role, and hosts every client.
        found.check_is(Role.NODE, Role.WORKER, *([Role.TOP_SERVER] if is_child() else []))
        proven = certified_name(found)
        if proven and settings.name not in (None, proven):
            raise ConfigError(
                f"--name {settings.name} is not the name in {found.files.named('cert')}, {proven}",
                "drop --name, or give the certificate of that name",
            )
    worker = found is not None and found.identity is not None and found.identity.role is Role.WORKER
    if found and dialled and not worker and not is_wildcard(host := split_address(dialled)[0]):
        found.check_covers(host, "where other nodes dial this one")
    return found


def certified_name(tls: Tls | None) -> str:
    """The name of this node in its certificate; empty if it has none."""
    is_node = tls is not None and tls.identity is not None and tls.identity.role in (Role.NODE, Role.WORKER)
    return tls.identity.name if is_node and tls and tls.identity else ""


def name_of(settings: NodeSettings, certified: str = "") -> str:
    """The name of this node, or that of its certificate; raises ConfigError if --name cannot be one."""
    if settings.name is None:
        host = _HOST_NAME.sub("-", socket.gethostname())[:40].lstrip("._-")
        return certified or f"{host or 'node'}-{os.getpid()}"
    if not is_name(settings.name):
        raise ConfigError(f"--name {settings.name!r} cannot be the name of a node", f"write {NAME_RULE}")
    return settings.name
