"""Local nodes: processes that a run starts on its own machine."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from fedgsp.addresses import resolve
from fedgsp.children import Child, Template, stop, tail
from fedgsp.errors import PeerError, RunError, UserError
from fedgsp.optimizers import AUTO, SGD
from fedgsp.settings.flags import arguments_of
from fedgsp.settings.policy import NO_POLICY
from fedgsp.settings.run import NodeSettings, RunConfig
from top_server.record.directory import RunDirectory
from top_server.record.journal import Journal, Line

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
#: What a node runs, and what its template imports before: torch takes seconds.
COMMAND, IMPORTS = ["fedgsp_node", "start"], ["fedgsp_node.cli", "fedgsp_node.server"]
#: What torch imports when the first optimiser is made: a second and 70 MB, which nodes then share.
OF_OPTIMIZERS = ["torch._dynamo"]

#: The exit code of a node tells the kind of its error; the run ends with the same kind.
_ERRORS: dict[int, type[UserError]] = {kind.exit_code: kind for kind in UserError.__subclasses__()}


def name_of(index: int) -> str:
    """The name of a local node in the record, and of its log file."""
    return f"node-{index}"


def blocks(clients: int, nodes: int) -> list[range]:
    """Clients 0 .. clients-1 as one contiguous block per node; the sizes of the blocks differ by at most one."""
    edges = [index * clients // nodes for index in range(nodes + 1)]
    return [range(first, end) for first, end in itertools.pairwise(edges)]


def imports(config: RunConfig) -> list[str]:
    """What the template of the local nodes imports."""
    named = config.optimizer not in (None, AUTO, SGD) or bool(config.optimizer_option)
    return [*IMPORTS, *(OF_OPTIMIZERS if named else [])]


def commands(config: RunConfig, top_server: str) -> list[list[str]]:
    """The command line of every local node: a module and its arguments."""
    dealt = blocks(config.clients, config.local_nodes) if config.clients is not None else [None] * config.local_nodes
    found = []
    for index, block in enumerate(dealt):
        name = name_of(index)
        settings = NodeSettings(
            **config.for_children,
            top_server=resolve(top_server, HOST),
            peer_listen=f"{HOST}:0",
            connect_timeout=config.join_timeout,
            task=config.task,
            task_option=config.task_option,
            clients=f"{block[0]}-{block[-1]}" if block else None,
            threads=config.threads,
            # The nodes take the GPUs of the machine in turn.
            device=f"auto:{index}" if config.device == "auto" else config.device,
            # The top server chooses the whole command line, so a policy would protect nobody from it.
            policy=NO_POLICY,
            # What stays with the clients, so that the run can be resumed.
            state_dir=RunDirectory(config.run_dir).state / name if config.run_dir is not None else None,
        )
        # The name comes first, because `ps` may show only the beginning.
        found.append([*COMMAND, "--name", name, *arguments_of(settings)])
    return found


@contextlib.asynccontextmanager
async def running(
    commands: Sequence[Sequence[str]], logs: Path, journal: Journal, imports: Sequence[str] | None = None
) -> AsyncIterator[Callable[[], None]]:
    """Starts the local nodes and stops them after the body; their output goes to `logs`/NAME.log.

    They are forked from a process with these `imports`, by default IMPORTS.

    If a node ends before it joined, the body is cancelled and the UserError that fits the node's exit code is raised.
    A node that ends later is lost like any other node. When all local nodes have ended and no other node ever joined,
    RunError is raised. The body calls the yielded function before it asks the nodes to end.
    """
    body = asyncio.current_task()
    assert body is not None
    cancelled_before = body.cancelling()
    joined: set[str] = set()
    gone: set[str] = set()
    early: list[UserError] = []
    over = asyncio.Event()

    def notice(event: Line) -> None:
        if event["event"] == "node_joined":
            joined.add(event["node"])

    def end(error: UserError) -> None:
        if not early and not over.is_set():
            early.append(error)
            body.cancel()

    def ended(name: str, log: Path, code: int) -> None:
        gone.add(name)
        what, said = f"local {name} ended with exit code {code}", tail(log)
        if name not in joined:  # its log may be removed with the run directory: see `is_worth_keeping`
            end(_ERRORS.get(code, PeerError)(what, f"its log ends: {said}"))
            return
        error = _ERRORS.get(code, PeerError)(what, f"its log, {log}, ends: {said}")
        logger.warning("%s", error)
        if len(gone) == len(commands) and joined <= gone:
            end(RunError(f"no node is left: {error.what}", error.remedy))

    async def live(name: str, command: Sequence[str]) -> None:
        log = logs / f"{name}.log"
        try:
            children.append(child := await nodes.spawn(command, log, says_ready=False))
        except PeerError as error:
            end(error)
        else:
            if code := await child.wait():
                ended(name, log, code)

    unsubscribe = journal.subscribe(notice)
    children: list[Child] = []
    async with contextlib.aclosing(Template(IMPORTS if imports is None else imports)) as nodes:
        lives = [
            asyncio.create_task(live(name_of(index), command), name=f"watch {name_of(index)}")
            for index, command in enumerate(commands)
        ]
        try:
            yield over.set
        except asyncio.CancelledError:
            # As in asyncio.timeout: the error is raised only if this was the only cancellation.
            if early and body.uncancel() <= cancelled_before:
                raise early[0] from None
            raise
        finally:
            over.set()
            unsubscribe()
            for each in lives:
                each.cancel()
            await asyncio.gather(*lives, return_exceptions=True)
            await asyncio.gather(*(stop(child) for child in children))
