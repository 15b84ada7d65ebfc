"""How a node introduces itself when it joins a run."""

import torch

from fedgsp import on_nodes
from fedgsp.messages import PROTOCOL, Hello
from fedgsp.scoring import ACCURACY
from fedgsp.settings.run import NodeSettings
from fedgsp_node import devices
from fedgsp_node.clients import Clients
from fedgsp_node.optimizers import has_own
from fedgsp_node.tasks import options_to_share, source_digest


def hello_of(settings: NodeSettings, clients: Clients, name: str, peer_address: str) -> Hello:
    """The first message of the node `name`, which other nodes dial at `peer_address` (empty: they do not)."""
    device, memory = devices.described(clients.device)
    found = clients.declared
    return Hello(
        protocol=PROTOCOL,
        node=name,
        task=settings.task,
        num_classes=clients.task.num_classes,
        clients=clients.hosted,
        tensors=clients.task_tensors,
        peer_address=peer_address,
        training_flop=clients.training_flop,
        task_options=options_to_share(settings.task, settings.task_option, clients.task),
        task_digest=source_digest(clients.task),
        parts=on_nodes.installed(),
        features=clients.features,
        own_optimizer=has_own(clients.task),
        constants=clients.constants,
        device=device,
        device_memory=memory,
        torch=torch.__version__,
        score="" if found.score == ACCURACY else found.score,
        combine=found.combine,
        lacks=found.lacks,
        class_counts_failed=found.class_counts_failed,
    )
