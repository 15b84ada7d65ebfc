"""One line of text for each event that a person should read."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from fedgsp.scoring import ACCURACY, LOSS, metric_of, rated
from fedgsp.visible import visible
from fedgsp.words import counted, with_name
from top_server.record.scores import score_of, scored_by

#: Lines about a local run, at most; in plain output every line stays visible.
LOCAL_RUN_LINES = 10
#: Metrics of a task in a line, at most; the history has all.
MOST_SHOWN = 5
#: A start of fewer group managers takes about a second and gets no line.
FEW_MANAGERS = 5


def describe(event: Mapping[str, Any], names: Mapping[int, str] | None = None) -> str | None:
    """The line for an event; None for events that are only recorded, and for most events of a long preparation.

    `names` are what people call clients.
    """
    kind = event["event"]
    if kind not in _LINES or (kind in _SHOWN and not _SHOWN[kind](event)):
        return None
    fields = defaultdict(lambda: "-", {name: _text(name, value) for name, value in event.items() if value is not None})
    fields |= _clients(event, names or {})
    fields["figures"] = ", ".join(f"{visible(name)} {_text('', value)}" for name, value in figures(event).items())
    fields["back"] = f" after {event['away']:.1f} s" if event.get("away") is not None else ""
    fields["of_node"] = f" of node {fields['node']}" if event.get("node") is not None else ""
    fields["missed"] = _missed(event)
    fields["scored_by"] = visible(scored_by(event))
    for name, noun in _COUNTED.items():
        fields[f"{name}_counted"] = counted(None if event.get(name) is None else count(event[name]), noun)
    fields["bytes"] = size(sum(count(event.get(name)) for name in ("bytes", "bytes_direct", "bytes_relayed")))
    return _LINES[kind].format_map(fields)


def _missed(event: Mapping[str, Any]) -> str:
    """The rounds that clients missed, and for how long their node was away."""
    first, last, seconds = event.get("first"), event.get("last"), event.get("seconds")
    rounds = f"round {first}" if first == last else f"rounds {first} to {last}"
    return f"{rounds}{'' if seconds is None else f', away for {seconds:.1f} s'}"


def figures(event: Mapping[str, Any]) -> dict[str, Any]:
    """What a line tells of an evaluation, by name: the figure that rates the models first, and at most some metrics.

    The figure that rates the models, and the loss of a round, are "-" if they are unknown.
    """
    score, value = scored_by(event), score_of(event)
    name = metric_of(score)
    found = {name: rated(score, value), ACCURACY: event.get(ACCURACY)}  # a second turn undoes what a minus sign turned
    always = {name}
    metrics = event.get("metrics")  # of `listening`, they are the address of a door
    for metric, one in list(metrics.items() if isinstance(metrics, Mapping) else ())[:MOST_SHOWN]:
        found.setdefault(metric, one)
    if event["event"] == "round_finished":
        found.setdefault(LOSS, event.get(LOSS))
        always.add(LOSS)
    return {one: "-" if value is None else value for one, value in found.items() if value is not None or one in always}


def _clients(event: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, str]:
    """The fields that name clients, with the names that people use."""
    found = {}
    if type(event.get("client")) is int:
        found["client"] = with_name(event["client"], names)
    if isinstance(event.get("clients"), list) and all(type(one) is int for one in event["clients"]):
        named = found["clients"] = ", ".join(with_name(one, names) for one in event["clients"])
        found["named_clients"] = f"{'client' if len(event['clients']) == 1 else 'clients'} {named}"
    return found


def count(value: Any) -> int:
    """A number of things, given as a number or as their list."""
    return len(value) if isinstance(value, list) else int(value or 0)


def size(number: float) -> str:
    """A number of bytes with a unit that keeps it short."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


def _tenth(event: Mapping[str, Any]) -> bool:
    """Whether a local run's round is the last one, or the last of one of `LOCAL_RUN_LINES` equal parts."""
    number, rounds = count(event.get("round")), count(event.get("rounds"))
    return number == rounds or number % max(1, -(-rounds // LOCAL_RUN_LINES)) == 0


def _round_number(event: Mapping[str, Any]) -> bool:
    """Whether 0 to 9, 10, 20, ... 100, 200, ... exchanges came before: ever fewer, since their total is unknown."""
    return len(str(count(event.get("exchanges")) - 1).rstrip("0")) <= 1


def _many_managers(event: Mapping[str, Any]) -> bool:
    return count(event.get("managers")) >= FEW_MANAGERS


def _quarter(event: Mapping[str, Any]) -> bool:
    """Whether another quarter of the group managers that start together is ready."""
    managers, ready = count(event.get("managers")), count(event.get("ready"))
    return managers >= FEW_MANAGERS and (ready == managers or ready % -(-managers // 4) == 0)


_SHOWN: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "local_round_finished": _tenth,
    "discriminators": _round_number,
    "managers_starting": _many_managers,
    "manager_spawned": _quarter,
}


_FORMATS = {"seconds": ".1f", "timeout": "g"}


def _text(name: str, value: Any) -> str:
    if isinstance(value, float):
        return format(value, _FORMATS.get(name, ".4f"))
    return visible(", ".join(map(str, value)) if isinstance(value, list) else str(value))


#: Field -> noun: the template field `clients_counted` becomes "1 client" or "2 clients".
_COUNTED = {
    "clients": "client",
    "clients_trained": "client",
    "nodes": "node",
    "groups": "group",
    "rounds": "round",
    "exchanges": "exchange",
    "networks": "network",
    "managers": "group manager",
    "hops": "training",
    "refusals": "refusal",
    "times": "time",
    "absences": "absence",
}
_LINES: dict[str, str] = {
    "listening": "listening on {address}",
    "waiting_for_nodes": "waiting at most {timeout} s for {nodes_counted} and {clients_counted}",
    "round_waits": "round {round} waits at most {timeout} s for clients: {clients} of {needed} are there",
    "round_waited": "round {round} goes on with {clients_counted} after a wait of {seconds} s",
    "clients_away": "round {round} begins without {named_clients}: node {node} left {seconds} s before: {reason}",
    "clients_missed": "{named_clients} missed {missed}: {reason}",
    "more_missed": "{absences_counted} more: see summary.json",
    "waiting_for_clients": "waiting at most {timeout} s for the {clients_counted} of the run",
    "node_joined": "node {node} joined with {clients_counted}{back}",
    "node_enrolled": "node {node} is enrolled and has a certificate",
    "node_revoked": "node {node} is revoked",
    "identity_used_twice": "WARNING: two processes use the identity of node {node}, from addresses {older} and {newer}"
    " ({times_counted} so far): {reason}",
    "node_left": "node {node} left: {reason}",
    "worker_ended": "warning: {reason}",
    "node_refused": "node {node} was refused: {reason}",
    "nodes_refused": "{refusals_counted} of nodes followed within a minute",
    "managers_starting": "starting {managers_counted}",
    "manager_spawned": "starting {managers_counted}: {ready} ready",
    "manager_lost": "group manager {manager} was lost: {reason}",
    "manager_not_started": "group manager {manager} could not be started: {reason}",
    "manager_stopped": "group manager {manager} is not needed any more",
    "settings_chosen": "chosen for {clients_counted}: {settings}",
    "groups_expected": "groups: {outlook}",
    "groups_doubted": "warning: {reason}",
    "run_started": "run started: {scheme}, {rounds_counted}, {clients_counted}",
    "run_resumed": "run resumed: {scheme}, after round {round} of {rounds}, {clients_counted}",
    "round_resumed": "round {round} continues with {hops_counted} from before the interruption",
    "clients_missing": "{named_clients} did not come back; the run continues without them",
    "state_damaged": "warning: {reason}; the run continues from the saved state before it and repeats later rounds",
    "initial_model_failed": "the initial model {model} could not be made: {reason}",
    "initial_models_differ": "warning: the initial model {model} is not the same on all nodes: {reason}",
    "initial_model_read": "the run starts from the weights in {file}",
    "not_evaluated": "round {round} was not evaluated: {reason}",
    "not_validated": "round {round} has no validation score: {reason}",
    "metric_left_out": "round {round}: {metric} of {named_clients} is left out: {reason}",
    "fields_left_out": "warning: {left_out} of {kind_of_event} is not recorded: {reason}",
    "question_failed": "round {round}: {program} ended without {named_clients}: {reason}",
    "rerouted": "round {round}, group {group}: the way to client {client} changed: {reason}",
    "client_skipped": "round {round}, group {group}: client {client}{of_node} was skipped: {reason}",
    "client_left_out": "client {client} is left out of the run: {reason}",
    "group_resumed": "round {round}, group {group}: group manager {manager} takes over",
    "group_failed": "round {round}, group {group} failed: {reason}",
    "trained_nobody": "{reason}; the run goes on",
    "round_failed": "round {round} failed: {reason}",
    "newcomers": "round {round}: {named_clients} joined during the run",
    "newcomers_wait": "round {round} begins without {named_clients}, for want of a model to start from: {reason}",
    "client_placed": "round {round}: client {client} joined during the run and was placed in group {group}",
    "layer_chosen": "updates are compared by layer {layer}",
    "discriminators": "measuring distances between clients: {exchanges_counted}, {left} of {networks_counted} left",
    "not_compared": "round {round}: client {client} is not compared with the others: {reason}",
    "distances_found": "round {round}: measured distances between {clients_counted} in {seconds} s, {bytes}",
    "local_run_started": "first every client trains alone for {rounds_counted}, recorded in {directory}",
    "gains_not_told": "gains over training alone are unknown for {named_clients}: {reason}",
    "local_round_finished": "alone: round {round} of {rounds}, {figures}, {seconds} s",
    "update_missing": "the update of client {client} is missing: {reason}",
    "model_lost": "the model of client {client} is lost: {reason}",
    "model_not_saved": "the model of client {client} was not saved: {reason}",
    "stopped_early": "the run ends after round {round}: no validation score was better than that of round {best}",
    "no_best_model": "warning: no round has a validation score, so no model is the best: {reason}",
    "clients_served": "{scored_by} over the clients: mean {mean}, deviation {std}, from {min} to {max}",
    "round_finished": "round {round}: {sampled_groups} of {groups_counted}, {clients_trained_counted}, "
    "{figures}, {seconds} s, {bytes}",
    "run_finished": "run finished: {rounds_counted}, {figures}, {seconds} s",
}
