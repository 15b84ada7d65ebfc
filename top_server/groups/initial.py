"""The models that a run begins with: made by nodes from the seed of the run, or read from a file."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Collection, Mapping

from fedgsp.messages import Failure, FailureCode, GroupResult, Trained
from fedgsp.settings.run import RunConfig
from fedgsp.tensors.relayed_state import without_state
from fedgsp.tensors.weights import Weights
from top_server import initial_file
from top_server.groups.lost import LOST, unanswered
from top_server.groups.run import MOST_TRIES, survey
from top_server.groups.taking import take
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.managers.client import BrokenOff
from top_server.models import INITIAL
from top_server.nodes.membership import Membership
from top_server.progress import Progress
from top_server.record.events.run import InitialModelFailed, InitialModelRead, InitialModelsDiffer
from top_server.run import RunContext
from top_server.schemes import Scheme

#: Number of nodes that are asked at first. A few nodes that refuse, or make other models, must not matter.
FIRST_ASKED = 8


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
    expected = initial_file.Expected(needed, without_state(added), stays, membership.standard.constants)
    await asyncio.to_thread(initial_file.check_fits, config.initial_model, expected)  # it reads the whole file


async def make_initial(context: RunContext, progress: Progress, slot: str, index: int = 0) -> None:
    """Puts fresh weights into a slot; every index gives others. Raises RunError if no node can make them.

    Some nodes are asked first. If they cannot make the weights, or no two of them make the same, all nodes are asked,
    but for those that have refused.
    """
    failure = Failure(FailureCode.NODE_LOST, "no client is there")
    refused: dict[str, Failure] = {}  # by node
    lost: set[str] = set()
    for tries in range(MOST_TRIES):
        makers = await _makers(context, refused, lost)
        if not makers:
            break
        asked = dict(itertools.islice(makers.items(), None if tries else FIRST_ASKED))
        outcome = await survey(context, progress, 0, GroupTask(index, "initialise", tuple(asked)), tries=tries)
        made = await take(context, outcome, context.membership.tensors)
        why = {asked[one.client]: one.failure for one in outcome.skipped if one.failure and one.client in asked}
        lost |= {node for node, failed in why.items() if failed.code in LOST}
        refused |= {node: failed for node, failed in why.items() if failed.code not in LOST}
        if isinstance(made, Weights):
            models = _models(outcome, asked)
            if len(asked) == len(makers) or len(set(models.values())) < len(models):
                _tell_others(context, slot, outcome, models)
                context.models.put([slot], context.initial_id(slot), context.handed_on(made.part(context.tensors)))
                return
            continue  # further nodes may decide
        failure = made.reason if isinstance(made, BrokenOff) else made
        context.journal.record(InitialModelFailed(model=slot, reason=str(failure)))
        if isinstance(made, BrokenOff) and made.lost:
            await context.managers.discard(outcome.manager)
    if refused and failure.code not in LOST:  # the reason of most nodes: one may say anything
        most, _ = Counter(why.code for why in refused.values()).most_common(1)[0]
        failure = next(why for why in refused.values() if why.code is most)
    raise unanswered(f"no node could make the initial model: {failure}", [failure])


async def _makers(context: RunContext, refused: Collection[str], lost: Collection[str]) -> dict[int, str]:
    """A client of each node that has not refused, with its node; those that were lost before come last.

    If none is there, and not all nodes have refused, it waits for them.
    """

    def there() -> dict[int, str]:
        first: dict[str, int] = {}
        for client in context.membership.clients:
            member = context.membership.member(client)
            if member is not None and member.node not in refused:
                first.setdefault(member.node, client)
        return {first[node]: node for node in sorted(first, key=lambda node: (node in lost, first[node]))}

    if not refused or any(node not in refused for node in lost):
        await context.membership.until(lambda: bool(there()), context.config.join_timeout)
    return there()


def _models(outcome: GroupOutcome, asked: Mapping[int, str]) -> dict[str, bytes]:
    """The digest of the model that each node has made."""
    return {
        asked[done.client]: done.result.ref.digest
        for done in outcome.done
        if isinstance(done.result, Trained) and done.result.ref is not None
    }


def _tell_others(context: RunContext, slot: str, outcome: GroupOutcome, models: Mapping[str, bytes]) -> None:
    """Notes in the journal if nodes made different models, unless the values of the model come from a file."""
    assert isinstance(outcome.result, GroupResult)
    counts = outcome.result.ref.digest if outcome.result.ref is not None else b""
    same = [node for node, digest in models.items() if digest == counts]
    others = [node for node, digest in models.items() if digest != counts]
    if not others or (slot == INITIAL and context.config.initial_model is not None):
        return
    if len(same) > 1:
        reason = f"that of {', '.join(same)} counts, and {', '.join(others)} made another one"
    else:
        reason = f"no two of {', '.join(models)} made the same; that of {', '.join(same)} counts, as it came first"
    digests = {node: digest.hex() for node, digest in models.items()}
    context.journal.record(InitialModelsDiffer(model=slot, reason=reason, digests=digests))
