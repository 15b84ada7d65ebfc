"""Checks the attributes of a task when it is loaded."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from fedgsp.errors import TaskError
from fedgsp.names import CLIENT_NAME_RULE, TEXT_RULE, is_client_name, is_text
from fedgsp.require import require
from fedgsp.scoring import ACCURACY, LOSS, MOST_METRICS, WAYS, metric_of, taken_by
from fedgsp.task import Task, overrides

_NONE = object()


def _is_flag(value: Any) -> bool:
    return isinstance(value, Integral | np.bool_) and value in (0, 1)


def _is_label(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and -(1 << 63) <= int(value) < 1 << 63


#: Attribute that is a single value -> whether a value is right, and what to do about another one.
_SINGLE: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "extractor": (
        lambda value: value is None or isinstance(value, str),
        "name a layer of the model, such as extractor = 'conv2', or None",
    ),
    "data_is_repeatable": (_is_flag, "write data_is_repeatable = True, or False"),
    "drop_last": (_is_flag, "write drop_last = True, or False"),
    "ignore_index": (_is_label, "write a whole number, such as ignore_index = -100"),
}
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
            raise TaskError(f"{what}: {attribute} is {described(found)}, not a tuple of strings", remedy)
    for attribute, (is_right, remedy) in _SINGLE.items():
        found = read(attribute, getattr(Task, attribute))
        require(is_right(found), f"{what}: {attribute} is {described(found)}", remedy)
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
    if value is None:
        return "None"
    kind = type(value).__name__
    try:
        text = repr(value)
    except Exception as error:
        return f"{kind}, whose repr() raises {type(error).__name__}"
    return f"{kind} {text if len(text) <= 60 else text[:57] + '...'}"
