"""Checks the attributes of a task when it is loaded."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedgsp.errors import TaskError
from fedgsp.names import CLIENT_NAME_RULE, TEXT_RULE, is_client_name, is_text
from fedgsp.require import require
from fedgsp.scoring import ACCURACY, LOSS, MOST_METRICS, WAYS, metric_of, taken_by
from fedgsp.task import Task, overrides

_NONE = object()
#: Reads an attribute: its name, and what the task is called in errors.
Read = Callable[[str, Any], Any]


def check_attributes(what: str, task: Task, read: Read) -> None:
    """Raises TaskError for an attribute that cannot be used; `what` is what the task is called in errors."""
    clients = read("num_clients", _NONE)
    require(
        clients is not _NONE,
        f"{what} has no num_clients",
        f"set num_clients to a positive int in {type(task).__name__}",
    )
    if isinstance(clients, bool) or not isinstance(clients, int) or clients < 1:
        raise TaskError(f"{what}: num_clients is {described(clients)}", "set num_clients to a positive int")
    classes = read("num_classes", _NONE)
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 0:
        raise TaskError(f"{what}: num_classes is {described(classes)}", "set num_classes to a positive int")
    require(
        classes or overrides(task, "loss"),
        f"{what} has no num_classes",
        f"set num_classes to a positive int in {type(task).__name__}, or override loss() if y are no classes",
    )
    for attribute in ("head", "constant", "local_options"):
        found = read(attribute, ())
        if not isinstance(found, tuple | list) or not all(isinstance(text, str) for text in found):
            remedy = f"write {attribute} = ({found!r},)" if isinstance(found, str) else f"write {attribute} = ('...',)"
            raise TaskError(f"{what}: {attribute} is {found!r}, not a tuple of strings", remedy)
    _check_score(what, read("score", ""))
    _check_combine(what, read("combine", {}))
    _check_names(what, read("client_names", ()), clients)


def _check_score(what: str, score: Any) -> None:
    require(
        isinstance(score, str) and (not score or is_text(score)) and score != "-",
        f"{what}: score is {described(score)}",
        "name a metric, such as score = 'f1', or '-mae' if smaller values are better",
    )
    require(
        score not in (f"-{ACCURACY}", LOSS),
        f"{what}: score is {score!r}, so that the worst models would be the best",
        f"write score = {ACCURACY if metric_of(score) == ACCURACY else f'-{LOSS}'!r}",
    )


def _check_combine(what: str, combine: Any) -> None:
    ways = ", ".join(WAYS)
    require(
        isinstance(combine, Mapping) and len(combine) <= MOST_METRICS and all(isinstance(one, str) for one in combine),
        f"{what}: combine is {described(combine)}",
        f"write combine = {{'metric': 'clients'}}, with at most {MOST_METRICS} metrics",
    )
    for metric, way in combine.items():
        require(is_text(metric), f"{what}: combine names metric {metric[:60]!r}", f"a name has to be {TEXT_RULE}")
        taken = taken_by(metric)
        require(
            taken is None,
            f"{what}: combine names {metric!r}, which {taken}",
            "leave it out; combine is for what metrics() returns"
            if metric in (ACCURACY, LOSS)
            else "give that metric another name",
        )
        require(
            isinstance(way, str) and way in WAYS,
            f"{what}: combine has {described(way)} for metric {metric!r}",
            f"choose among {ways}",
        )


def _check_names(what: str, names: Any, clients: int) -> None:
    of = names_in(names)
    if of is None:
        raise TaskError(
            f"{what}: client_names is {described(names)}",
            "give a dict from numbers of clients to names, or a sequence of names",
        )
    require(
        isinstance(names, Mapping) or len(names) in (0, clients),
        f"{what}: client_names has {len(names)} names for {clients} clients",
        "give a name for each client, or a dict with the names of some",
    )
    for client, name in of.items():
        require(
            type(client) is int and 0 <= client < clients,
            f"{what}: client_names names client {described(client)}",
            f"number the clients 0 .. {clients - 1}",
        )
        require(
            isinstance(name, str) and is_client_name(name),
            f"{what}: client_names has {described(name)} for client {client}",
            f"a name has to be {CLIENT_NAME_RULE}",
        )
    if twice := [name for name, count in Counter(of.values()).items() if count > 1]:
        raise TaskError(f"{what}: client_names has {twice[0]!r} twice", "give each client another name")


def names_in(names: Any) -> dict[Any, Any] | None:
    """Client -> its name, of a value of `client_names`; None if it is neither a mapping nor a sequence of names."""
    if isinstance(names, Mapping):
        return dict(names)
    if isinstance(names, Sequence) and not isinstance(names, str | bytes):
        return dict(enumerate(names))
    return None


def described(value: object) -> str:
    """A value as an error shows it, with its type."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}" if value is not None else "None"
