"""Loads the task of a node, whose module may change the process when it is imported."""

import torch

from fedgsp.settings.run import NodeSettings
from fedgsp.task import Task
from fedgsp_node import devices
from fedgsp_node.tasks import load_task


def own_task(settings: NodeSettings, device: torch.device) -> Task:
    """The task of these settings; threads and determinism of torch stay what the node has chosen.

    Many modules set them for scripts of their own, and the bits of a training depend on them. `seeding.seeded` sees to
    the threads that `data()` and `model()` set.
    """
    task = load_task(settings.task, settings.task_option)
    torch.set_num_threads(settings.threads)
    devices.prepare(device)
    return task
