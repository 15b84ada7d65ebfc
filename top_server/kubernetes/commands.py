"""The command of `top-server` for Kubernetes."""

from pathlib import Path
from typing import Annotated

import typer

from fedgsp.durations import seconds_in
from fedgsp.files import write_secret
from fedgsp.settings.flags import settled
from fedgsp.settings.run import RunConfig
from fedgsp.stdout import echo
from top_server.choosing import NAMES
from top_server.federation.commands import MOST_CERTIFICATE_S


def kubernetes(
    config_file: Annotated[Path, typer.Option("--config", metavar="FILE", help="the settings of the run in TOML")],
    image: Annotated[str, typer.Option(help="the image with FedGSP and the task: see Containerfile")],
    nodes: Annotated[int, typer.Option(help="number of nodes, each a pod")],
    clients: Annotated[int, typer.Option(help="number of clients that the nodes host together")],
    name: Annotated[str, typer.Option(help="prefix of the names of all objects in the manifests")] = "fedgsp",
    namespace: Annotated[str, typer.Option(help="the namespace")] = "default",
    data_claim: Annotated[
        str, typer.Option(metavar="NAME", help="persistent volume claim with the data, which nodes read at /data")
    ] = "",
    storage_class: Annotated[str, typer.Option(metavar="NAME", help="storage class of the volume for the run")] = "",
    cpu: Annotated[str, typer.Option(help="processors of each pod")] = "1",
    memory: Annotated[str, typer.Option(help="memory of each pod")] = "2Gi",
    disk: Annotated[str, typer.Option(help="size of the volume for the run")] = "10Gi",
    gpus: Annotated[int, typer.Option(min=0, help="NVIDIA GPUs of each node")] = 0,
    certificates_for: Annotated[
        str, typer.Option(metavar="DURATION", help="how long the certificates are good: 12h, 30d")
    ] = "30d",
    out: Annotated[
        Path, typer.Option(help="the file to write; it contains private keys, so only you can read it")
    ] = Path("fedgsp.yaml"),
) -> None:
    """Write the manifests of a run on Kubernetes: a job for the top server, one for the nodes, and their keys."""
    from datetime import timedelta

    from top_server.kubernetes.cluster import Cluster
    from top_server.kubernetes.rendering import render

    cluster = Cluster(
        image=image,
        nodes=nodes,
        clients=clients,
        name=name,
        namespace=namespace,
        data_claim=data_claim,
        storage_class=storage_class,
        cpu=cpu,
        memory=memory,
        disk=disk,
        gpus=gpus,
    )
    life = timedelta(seconds=seconds_in("--certificates-for", certificates_for, MOST_CERTIFICATE_S))
    text = render(settled(RunConfig, config_file, {}, NAMES), cluster, life)
    write_secret(out, text.encode(), lasting=False)
    echo(out)
