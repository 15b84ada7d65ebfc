"""A question to clients between the trainings of a round: one task on one manager."""

from top_server.groups.run import fresh_trace, run_group
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.progress import Progress
from top_server.reveals.updates import Reveals
from top_server.run import RunContext


async def survey(
    context: RunContext,
    progress: Progress,
    round_number: int,
    task: GroupTask,
    *,
    tries: int = 0,
    reveals: Reveals | None = None,
) -> GroupOutcome:
    """Plays a task on one manager, or on another one if that is lost. `tries` counts repetitions of the same task."""
    (manager,) = await context.managers.ensure(1)
    return await run_group(context, progress, round_number, task, manager, fresh_trace(context, tries), reveals)
