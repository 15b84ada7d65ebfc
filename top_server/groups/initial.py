"""Fresh models, made by the node of a client from the seed of the run."""

from collections import deque

from fedgsp.messages import Failure, FailureCode
from top_server.groups.lost import LOST, unanswered
from top_server.groups.run import MOST_TRIES, survey
from top_server.groups.taking import take
from top_server.groups.task import GroupTask
from top_server.progress import Progress
from top_server.record.events.run import InitialModelFailed
from top_server.run import RunContext


async def make_initial(context: RunContext, progress: Progress, slot: str, index: int = 0) -> None:
    """Puts fresh weights into a slot; every index gives others. Raises RunError if no node can make them."""
    failure = Failure(FailureCode.NODE_LOST, "no client is there")
    for tries in range(MOST_TRIES):
        if not await context.membership.wait_for(1, 1, context.config.join_timeout):
            break
        task = GroupTask(index, "initialise", _some_clients(context, tries))
        outcome = await survey(context, progress, 0, task, tries=tries)
        made = await take(context, outcome, context.membership.tensors)
        if not isinstance(made, Failure):
            context.models.put([slot], context.initial_id(slot), context.handed_on(made.part(context.tensors)))
            return
        failure = made
        context.journal.record(InitialModelFailed(model=slot, reason=str(failure)))
        if failure.code not in LOST:
            break
        if not isinstance(outcome.result, Failure):
            await context.managers.discard(outcome.manager)  # it has the model and does not answer
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
