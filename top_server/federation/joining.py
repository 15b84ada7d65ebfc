"""Whether a node may join the runs of a federation: a pure check of who it is and of the clients that it claims."""

from fedgsp.identity import Identity, Role
from fedgsp.messages import Failure, FailureCode, Hello
from top_server.federation.registry import Registry
from top_server.nodes.admission import Refusal


def refusal(registry: Registry, proven: Identity | None, enrolment: str, hello: Hello) -> Refusal | None:
    """Why a node may not join; None if it is enrolled, and the registry has all its clients for its task.

    The top server chooses the clients of the nodes that it starts: of workers, and of processes with its certificate.
    """
    if proven is not None and proven.role in (Role.TOP_SERVER, Role.WORKER):
        return None
    entry = registry.member(proven.name, enrolment) if proven is not None else None
    if entry is None:
        failure = Failure(FailureCode.NOT_ALLOWED, "it is not enrolled in this federation: ask for an invitation")
        return Refusal(failure, f"it is {proven or 'nobody'}")
    ids = entry.ids(hello.task)
    foreign = [hosted.client for hosted in hello.clients if hosted.client not in ids]
    if not foreign:
        return None
    what = f"client {min(foreign)} of task {hello.task[:100]!r} is not registered for it"
    registered = entry.clients.get(hello.task)
    if registered:
        detail = f"{what} (registered: {registered[:200]}): correct its --clients"
    else:
        detail = (
            f"{what}, and no other client of this task is: correct its --task, or let `top-server assign` register it"
        )
    return Refusal(Failure(FailureCode.NOT_ALLOWED, detail), "`top-server assign` changes it")
