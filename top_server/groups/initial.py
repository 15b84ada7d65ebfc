"""The models that a run begins with: made by the node of a client from the seed of the run, or read from a file."""

import asyncio
from collections import deque

from fedgsp.messages import Failure, FailureCode
from fedgsp.relayed_state import without_state
from fedgsp.settings.run import RunConfig
from fedgsp.weights import Weights
from top_server import initial_file
from top_server.groups.lost import LOST, unanswered
from top_server.groups.run import MOST_TRIES, survey
from top_server.groups.taking import take
from top_server.groups.task import GroupTask
from top_server.managers.client import BrokenOff
from top_server.models import INITIAL
from top_server.nodes.membership import Membership
from top_server.progress import Progress
from top_server.record.events.run import InitialModelFailed, InitialModelRead
from top_server.run import RunContext
from top_server.schemes import Scheme


async def begin(context: RunContext, progress: Progress) -> None:
    """Puts the initial model of the run into its slot; raises RunError or ConfigError if it cannot be had.

    A node also makes it if there is a file: the file may lack what the run adds to the model of the task.
    """
    await make_initial(context, progress, INITIAL)
    path = context.config.initial_model
    if path is None:
        return
    made = context.models.weights(context.models[INITIAL])
    weights = context.handed_on(await asyncio.to_thread(initial_file.with_values, path, made))
    context.models.apply({INITIAL: None})  # one name never stands for two models
    context.models.put([INITIAL], context.initial_id(INITIAL), weights)
    digest = await asyncio.to_thread(initial_file.sha256, path)
    context.journal.record(InitialModelRead(file=str(path), sha256=digest))


async def check(config: RunConfig, scheme: Scheme, membership: Membership) -> None:
    """Raises ConfigError if there is a file, and it does not have the model that the first node has told."""
    own = membership.standard.tensors
    if config.initial_model is None or not own:
        return
    added = membership.tensors[len(own) :]
    stays = {spec.name for spec in own if spec.head and scheme.without_head}
    needed = tuple(spec for spec in own if spec.name not in stays)
    expected = initial_file.Expected(needed, without_state(added), stays, membership.constants or {})
    await asyncio.to_thread(initial_file.check_fits, config.initial_model, expected)  # it reads the whole file


async def make_initial(context: RunContext, progress: Progress, slot: str, index: int = 0) -> None:
    """Puts fresh weights into a slot; every index gives others. Raises RunError if no node can make them."""
    failure = Failure(FailureCode.NODE_LOST, "no client is there")
    for tries in range(MOST_TRIES):
        if not await context.membership.wait_for(1, 1, context.config.join_timeout):
            break
        task = GroupTask(index, "initialise", _some_clients(context, tries))
        outcome = await survey(context, progress, 0, task, tries=tries)
        made = await take(context, outcome, context.membership.tensors)
        if isinstance(made, Weights):
            context.models.put([slot], context.initial_id(slot), context.handed_on(made.part(context.tensors)))
            return
        failure = made.reason if isinstance(made, BrokenOff) else made
        context.journal.record(InitialModelFailed(model=slot, reason=str(failure)))
        if failure.code not in LOST:
            break
        if isinstance(made, BrokenOff) and made.lost:
            await context.managers.discard(outcome.manager)
    raise unanswered(f"no node could make the initial model: {failure}", [failure])


def _some_clients(context: RunContext, tries: int) -> tuple[int, ...]:
    """Up to three clients of three nodes; every try takes others, if there are more nodes."""
    by_node: dict[str, int] = {}
    for client in context.membership.clients:
        if (member := context.membership.member(client)) is not None:
            by_node.setdefault(member.node, client)
    order = deque(by_node.values())
    order.rotate(-3 * tries)
    return tuple(order)[:3]
