"""What a person can do about what went wrong in a run, by the kind of the event and the code of the failure."""

from collections.abc import Mapping
from typing import Any

_LOG = "see the log of its node"
_NETWORK = "see the network between the machines, and the logs of both nodes"
_SAME_TASK = "give its node the task, the options and the versions of the other nodes"
_DIVERGED = "lower --learning-rate or give --clip-norm; if it is this client alone, look at its data"
#: Name of a failure code -> what to do about a client that was skipped for it.
_OF_CODES = {
    "UNSPECIFIED": f"nothing if the reason says that the client came late, or is left out; otherwise {_LOG}",
    "UNREACHABLE": "see whether its node runs, and the network between the machines",
    "NODE_LOST": f"{_LOG}, and start the node again if it has ended",
    "STALLED": f"{_LOG}, and its network; if one batch takes minutes there, raise --stall-timeout",
    "POLICY": "ask the owner of its node: the reason names the flag that would allow it",
    "NO_SUCH_MODEL": f"{_LOG}: it was started again, or has no room for models",
    "UNKNOWN_CLIENT": "start its node with the clients that it had, or let the run go on without them",
    "BAD_ORDER": "change what the reason names; settings change only in a new run, for a resumed one keeps them",
    "CUT_SHORT": _NETWORK,
    "BAD_STREAM": _NETWORK,
    "WRONG_DIGEST": _NETWORK,
    "TOO_LONG": _SAME_TASK,
    "NO_ROOM": "make room on its machine: more memory, or disk where TMPDIR (or /var/tmp) or its --state-dir is",
    "WRONG_SHAPES": _SAME_TASK,
    "NOT_FINITE": _DIVERGED,
    "DIVERGED": _DIVERGED,
    "LONG_UPDATE": "look at the data of the client; --update-norm-limit sets the limit",
    "TASK_RAISED": f"correct the task or the data: the reason, or {_LOG.removeprefix('see ')}, names file and line",
    "DISPUTED": "ask the owners of both nodes: one of them tells something wrong",
    "BAD_RECEIPT": "see whether its node is of the version of the others, and who runs it",
    "CERTIFICATE_EXPIRED": "give its node a new certificate; it comes back by itself",
}
#: About `metrics_per_client` that a line of the record lacks, on test or on validation data.
_FEWER_METRICS = "let metrics() of the task return fewer figures; those over all clients are recorded"
#: Kind of event -> what to do.
_OF_KINDS = {
    "client_skipped": _LOG,
    "clients_away": "start its node again, or see its network; it takes part from the next round on",
    "client_left_out": "correct its task or data; the client takes part again in the next run",
    "model_lost": f"{_LOG}: it was started again, perhaps without its --state-dir",
    "model_not_saved": f"{_LOG}; --extend by one round gives the client another try",
    "update_missing": _LOG,
    "newcomers_wait": "nothing if it happened once; otherwise see logs/manager-*.log and the memory of the machine",
    "not_compared": "give the client more samples; until then it counts as unlike all others",
    "question_failed": "make room on the machine of the group managers if they were full; otherwise see their logs",
    "rerouted": "nothing, unless it happens in many rounds: then see the network between the two nodes",
    "node_left": "see the log of the node, and start it again; it takes part from the next round on",
    "worker_ended": "correct what the end of its log names; --resume starts the nodes of the run again",
    "node_joined": "give all nodes the same file of the task, unless the difference is wanted",
    "node_refused": "correct what the reason names, then start the node again",
    "nodes_refused": "see the reasons of the refusals before them",
    "node_revoked": "invite it again if it is to take part: top-server invite",
    "identity_used_twice": "revoke the node (top-server revoke), unless you know both addresses",
    "manager_lost": "nothing if it happened once; otherwise see logs/manager-*.log and the memory of the machine",
    "group_resumed": "nothing: the group went on",
    "group_failed": "see why its clients were skipped",
    "clients_missing": "start their nodes again; they take part from the next round on",
    "metric_left_out": "let the metric of the task return a number for the data of these clients",
    "fields_left_out": (
        "nothing: a line has no room for a value of each of so many clients, and the run goes on without it"
    ),
    "round_failed": "start the nodes again that have left; if none has, let them reach the ports of group managers",
    "round_waits": "start the nodes again, or resume with a smaller --min-clients",
    "trained_nobody": "see why the clients of the round were skipped",
    "not_evaluated": "see the logs of the nodes; clients without test samples cannot be evaluated",
    "initial_models_differ": (
        "give all nodes the same version of the task and of torch, or begin with --initial-model; processors of other"
        " kinds may make other models, too. If nothing of this is the reason, a node did not do as ordered"
    ),
    "initial_model_failed": "correct what the reason names; other clients are asked by themselves",
    "state_damaged": "see the disk of the run directory; rounds since the state before are played again",
    "groups_doubted": "change the flags that the reason names, unless these groups are wanted",
}


def remedy_of(event: Mapping[str, Any]) -> str:
    """What a person can do about what an event tells; empty for kinds that are no trouble."""
    kind = str(event.get("event"))
    of_kind = _OF_KINDS.get(kind, "")
    match kind:
        case "client_skipped":
            return _OF_CODES.get(str(event.get("code")), of_kind)
        case "fields_left_out" if isinstance(fields := event.get("left_out"), list):
            found = (_FEWER_METRICS if str(one).endswith("metrics_per_client") else of_kind for one in fields)
            return "; ".join(dict.fromkeys(found)) or of_kind
    return of_kind
