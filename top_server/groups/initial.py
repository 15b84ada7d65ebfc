"""The models that a run begins with: made by the node of a client from the seed of the run, or read from a file."""

import asyncio
import itertools
from collections import deque
from collections.abc import Collection, Mapping

from fedgsp.messages import Failure, FailureCode, GroupResult, Trained
from fedgsp.relayed_state import without_state
from fedgsp.settings.run import RunConfig
from fedgsp.weights import Weights
from top_server import initial_file
from top_server.groups.lost import LOST, unanswered
from top_server.groups.run import MOST_NUMBERED, MOST_TRIES, survey
from top_server.groups.taking import take
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.managers.client import BrokenOff
from top_server.models import INITIAL
from top_server.nodes.membership import Membership
from top_server.progress import Progress
from top_server.record.events.run import InitialModelFailed, InitialModelRead, InitialModelsDiffer
from top_server.run import RunContext
from top_server.schemes import Scheme

#: Number of nodes that the first question goes to. They are asked one after the other. Each node that refuses adds one
#: to the next question, so that a few questions reach all nodes, however many there are.
_FIRST_ASKED = 3


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
    """Puts fresh weights into a slot; every index gives others. Raises RunError if no node can make them.

    A few nodes must not be able to end the run, so each node that refuses or fails is left out, and others are asked.
    """
    failure = Failure(FailureCode.NODE_LOST, "no client is there")
    refused: dict[str, Failure] = {}  # by node
    lost = 0
    for tries in range(MOST_NUMBERED):
        if lost == MOST_TRIES or not await context.membership.wait_for(1, 1, context.config.join_timeout):
            break
        asked = _some_clients(context, _FIRST_ASKED + len(refused), lost, refused)
        if not asked:
            break  # all nodes have answered, and none with a model
        outcome = await survey(context, progress, 0, GroupTask(index, "initialise", tuple(asked)), tries=tries)
        made = await take(context, outcome, context.membership.tensors)
        if isinstance(made, Weights):
            _compare(context, slot, outcome, asked)
            context.models.put([slot], context.initial_id(slot), context.handed_on(made.part(context.tensors)))
            return
        failure = made.reason if isinstance(made, BrokenOff) else made
        context.journal.record(InitialModelFailed(model=slot, reason=str(failure)))
        told = {asked[one.client]: one.failure for one in outcome.skipped if one.failure and one.client in asked}
        answered = {node: why for node, why in told.items() if why.code not in LOST}
        refused |= answered
        if failure.code in LOST:
            lost += 1
        elif not answered:
            break  # no node is to blame
        if isinstance(made, BrokenOff) and made.lost:
            await context.managers.discard(outcome.manager)
    raise unanswered(f"no node could make the initial model: {failure}", [failure, *refused.values()])


def _compare(context: RunContext, slot: str, outcome: GroupOutcome, asked: Mapping[int, str]) -> None:
    """Notes in the journal if nodes made different models."""
    assert isinstance(outcome.result, GroupResult)
    made = {
        asked[done.client]: done.result.ref.digest
        for done in outcome.done
        if isinstance(done.result, Trained) and done.result.ref is not None
    }
    counts = outcome.result.ref.digest if outcome.result.ref is not None else b""
    if others := [node for node, digest in made.items() if digest != counts]:
        same = [node for node, digest in made.items() if digest == counts]
        reason = f"that of {', '.join(same)} counts, and {', '.join(others)} made another one"
        digests = {node: digest.hex() for node, digest in made.items()}
        context.journal.record(InitialModelsDiffer(model=slot, reason=reason, digests=digests))


def _some_clients(context: RunContext, most: int, lost: int, refused: Collection[str]) -> dict[int, str]:
    """At most so many clients with their nodes, one of each node; after each lost answer, others come first."""
    by_node: dict[str, int] = {}
    for client in context.membership.clients:
        if (member := context.membership.member(client)) is not None and member.node not in refused:
            by_node.setdefault(member.node, client)
    order = deque((client, node) for node, client in by_node.items())
    order.rotate(-_FIRST_ASKED * lost)
    return dict(itertools.islice(order, most))
