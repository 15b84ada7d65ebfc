"""What a person says of the cluster, and the checks of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from fedgsp.errors import ConfigError
from fedgsp.settings.checks import flag

#: The longest name: pods and hosts have it with an ending, and a label of a host has 63 characters.
MOST_NAME = 40
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}", re.ASCII)


def _is_label(value: str) -> bool:
    return len(value) <= MOST_NAME and _LABEL.fullmatch(value) is not None


#: Field -> what its value must look like, and how to say so.
_RULES: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(
        ("name", "namespace", "data_claim", "storage_class"),
        (_is_label, f"write at most {MOST_NAME} small letters, digits and dashes, with a letter first"),
    ),
    **dict.fromkeys(("cpu", "memory", "disk"), (_QUANTITY.fullmatch, "write a quantity such as 2, 500m or 4Gi")),
    "image": (_IMAGE.fullmatch, "write the name of an image, such as registry.example.org/fedgsp:1"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where and with what the processes of a run are to run; empty names are not used."""

    image: str
    nodes: int
    clients: int
    name: str = "fedgsp"
    namespace: str = "default"
    #: The claim of a volume with the data, which all nodes read at /data.
    data_claim: str = ""
    #: The class of the volume for the run directory; empty: that of the cluster.
    storage_class: str = ""
    #: Of each node and of the top server.
    cpu: str = "1"
    memory: str = "2Gi"
    #: Of the run directory.
    disk: str = "10Gi"
    #: NVIDIA GPUs of each node.
    gpus: int = 0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            fits, remedy = _RULES.get(one.name, (None, ""))
            if fits is not None and value and not fits(value):
                raise ConfigError(f"{flag(one.name)} {value!r} cannot stand in a manifest", remedy)
        if not 1 <= self.nodes <= self.clients:
            raise ConfigError(
                f"--nodes {self.nodes} with --clients {self.clients}", "give at least one node, and each a client"
            )

    @property
    def top_server(self) -> str:
        """The name of the top server's job, and its host name in the namespace."""
        return f"{self.name}-top"

    @property
    def hosts(self) -> list[str]:
        """The names by which nodes, and the top server itself, dial the top server."""
        inside = f"{self.top_server}.{self.namespace}"
        return [self.top_server, inside, f"{inside}.svc", f"{inside}.svc.cluster.local", "localhost", "127.0.0.1"]
