"""Renders the manifests of a run: settings, certificates, jobs, and what they may reach."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedgsp.errors import ConfigError, DataError, RunError, TaskError
from fedgsp.identity import TOP_SERVER, Identity, node
from fedgsp.options import clients_text
from fedgsp.security.certificates import new_key, now, pem_of, pem_of_key
from fedgsp.settings.files import dump
from fedgsp.settings.policy import NO_POLICY
from fedgsp.settings.run import GROUPING_SERVICE, NodeSettings, RunConfig
from top_server.federation.authority import Authority, new_authority
from top_server.kubernetes.cluster import Cluster
from top_server.placing.workers import name_of, shares

#: Ports of the top server and of the first of its group managers.
PORT, FIRST_MANAGER_PORT = 7000, 7100
#: Group managers that may run at a time.
MANAGERS = 400
#: Where the containers have their certificate, as files that only their user can read.
TLS = Path("/tls")
#: How long nodes wait for the top server, and the top server for nodes: a cluster may have to make machines first.
PATIENCE_S = 3600.0
#: What the manifests say themselves; settings of a person would contradict them.
_OURS = (
    *("listen", "manager_ports", "run_dir", "place", "workers", "local_nodes", "clients", "federation", "host"),
    *("tls_ca", "tls_cert", "tls_key", "insecure"),
)
#: Doors for people, whom the network policies of the manifests keep out.
_DOORS = ("metrics", "web")

#: Ends of a top server that another try does not mend.
_FINAL = (ConfigError, TaskError, DataError, RunError)


def render(config: RunConfig, cluster: Cluster, life: dt.timedelta) -> str:
    """The manifests as YAML; the certificates in it are good for `life`.

    Raises ConfigError for settings that the manifests have to make themselves.
    """
    defaults = RunConfig()
    for name in _OURS:
        if getattr(config, name) != getattr(defaults, name):
            raise ConfigError(f"{name} in --config is for processes that you start yourself", "leave it out")
    closed = [name for name in _DOORS if getattr(config, name) != getattr(defaults, name)]
    if (config.grouping or "").startswith(GROUPING_SERVICE):
        closed.append("grouping")
    if closed:
        what = f"{closed[0]} in --config needs connections that the network policies of the manifests refuse"
        raise ConfigError(what, "leave it out")
    environment = Environment(
        loader=PackageLoader("top_server.kubernetes", ""), undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["quoted"] = json.dumps  # a text of JSON is one of YAML
    return environment.get_template("manifests.yaml.jinja").render(
        cluster=cluster,
        port=PORT,
        first_manager_port=FIRST_MANAGER_PORT,
        last_manager_port=FIRST_MANAGER_PORT + MANAGERS - 1,
        exit_codes=[kind.exit_code for kind in _FINAL],
        settings={**_settings(config, cluster), **_clients(cluster)},
        secrets=_secrets(cluster, life),
    )


def _settings(config: RunConfig, cluster: Cluster) -> dict[str, str]:
    """The files of settings by name."""
    files: dict[str, Any] = {"tls_ca": TLS / "ca.pem", "tls_cert": TLS / "own.pem", "tls_key": TLS / "own.key"}
    run = dataclasses.replace(
        config,
        listen=f"0.0.0.0:{PORT}",
        manager_ports=f"{FIRST_MANAGER_PORT}-{FIRST_MANAGER_PORT + MANAGERS - 1}",
        min_nodes=max(config.min_nodes, cluster.nodes),
        join_timeout=max(config.join_timeout, PATIENCE_S),
        **files,
    )
    hosted = NodeSettings(
        top_server=f"{cluster.top_server}:{PORT}",
        task=config.task,
        task_option=config.task_option,
        threads=config.threads,
        device=config.device,
        connect_timeout=PATIENCE_S,
        state_dir=Path("/state/node"),
        policy=NO_POLICY,  # whoever renders this chooses the whole command line
        lost_after=config.lost_after,
        wire=config.wire,
        **files,
    )
    return {"run.toml": dump(run), "node.toml": dump(hosted)}


def _clients(cluster: Cluster) -> dict[str, str]:
    """The clients of each node, by the name of a file."""
    dealt = shares(cluster.clients, cluster.nodes)
    return {f"clients-{index}": clients_text(share) for index, share in enumerate(dealt)}


def _secrets(cluster: Cluster, life: dt.timedelta) -> dict[str, str]:
    """Certificates and keys by the names of files, in base64. Nobody keeps the key of the CA."""
    authority = new_authority()
    found = {"ca.pem": pem_of(authority.certificate)}
    found |= _files("top", authority, TOP_SERVER, cluster.hosts, life)
    for index in range(cluster.nodes):
        found |= _files(str(index), authority, node(name_of(index)), [], life)
    return {name: b64encode(content).decode() for name, content in found.items()}


def _files(name: str, authority: Authority, who: Identity, hosts: list[str], life: dt.timedelta) -> dict[str, bytes]:
    key = new_key()
    certificate = authority.issued(who, hosts, key.public_key(), now() + life)
    return {f"{name}.pem": pem_of(certificate), f"{name}.key": pem_of_key(key)}
