"""Looks at what is on this machine, in a thread: device, task, data, model, policy, disk and memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from fedgsp.errors import UserError
from fedgsp.settings.node_check import CheckSettings
from fedgsp.settings.policy import Policy
from fedgsp.task import Task
from fedgsp.versions import versions
from fedgsp_node import devices
from fedgsp_node.check import machine
from fedgsp_node.check.facts import Facts, Model, Unchecked
from fedgsp_node.check.work import Work, attempt
from fedgsp_node.clients import Clients
from fedgsp_node.own_task import own_task
from fedgsp_node.policies.policy import check_start
from fedgsp_node.tasks import source_digest

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def look(settings: CheckSettings, policy: Policy, facts: Facts) -> Clients | None:
    """Fills in what is on this machine; returns the clients, if the task, its data and its model can be used."""
    facts.own_versions = versions()  # with torch
    device = attempt(lambda: devices.device_of(settings.device))
    facts.device = device if isinstance(device, UserError) else devices.described(device)[0]
    work = Work()
    await _in_time(settings.data_timeout, lambda: _work(work, settings, device))
    work.stop()
    facts.data_timeout = settings.data_timeout
    facts.task, facts.data, facts.model = work.facts(settings.data_timeout)
    if isinstance(work.task, Task):
        facts.policy = attempt(lambda: _allowed(settings, policy, work.task))
    if isinstance(facts.model, Model):
        size, clients = facts.model.size, work.wanted
        facts.disk = attempt(lambda: machine.rooms(settings.state_dir, size, clients))
        facts.memory = machine.memory(size, clients)
    else:
        facts.disk = facts.memory = Unchecked("the size of the model is not known")
    return work.clients if isinstance(work.clients, Clients) else None


def _work(work: Work, settings: CheckSettings, device: torch.device | UserError) -> None:
    torch.set_num_threads(settings.threads)
    used = devices.CPU if isinstance(device, UserError) else device
    devices.prepare(used)
    work.look(lambda: own_task(settings, used), settings.client_ids, used)


async def _in_time(seconds: float, call: Callable[[], None]) -> None:
    """Waits for a call in a thread, for so many seconds at most."""
    logger.info("reading the data and trying the model, for %g s at most (--data-timeout)", seconds)
    running = asyncio.get_running_loop().run_in_executor(None, call)
    done, _ = await asyncio.wait({running}, timeout=seconds)
    if done:
        await running


def _allowed(settings: CheckSettings, policy: Policy, task: object) -> str:
    assert isinstance(task, Task)
    check_start(policy, settings.top_server, source_digest(task))
    return "it allows this top server and this task"
