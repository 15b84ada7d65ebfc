"""Converts options given as text to the types with which a factory's parameters are annotated."""

from __future__ import annotations

import functools
import inspect
import pathlib
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fedgsp.errors import TaskError
from fedgsp.options import shortened, suggestion, truth

_PARSERS: dict[Any, Callable[[str], Any]] = {
    bool: truth,
    float: float,
    int: int,
    str: str,
    pathlib.Path: lambda text: pathlib.Path(text).expanduser(),
    typing.Any: str,
}
_PLAIN_NAMES = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    str: "text",
    pathlib.Path: "a path",
    typing.Any: "text",
}


def parse_options(name: str, factory: Callable[..., object], options: Mapping[str, str]) -> dict[str, Any]:
    """Keyword arguments for `factory`; TaskError for an unknown or missing option, or a value of the wrong type."""
    parameters = inspect.signature(factory).parameters
    accepted = {key: value for key, value in parameters.items() if value.kind in _BY_KEYWORD}
    rest = next((value for value in parameters.values() if value.kind is inspect.Parameter.VAR_KEYWORD), None)
    unknown = [key for key in options if key not in accepted]
    if unknown and rest is None:
        raise TaskError(f"task {name!r} has no option {unknown[0]!r}", suggestion(unknown[0], accepted, "it takes"))
    lacking = [key for key, value in accepted.items() if value.default is value.empty and key not in options]
    if lacking:
        raise TaskError(f"task {name!r} needs the option {lacking[0]!r}", f"give --task-option {lacking[0]}=VALUE")
    return {key: _parse(name, factory, accepted.get(key, rest), key, text) for key, text in options.items()}


def shared_options(
    name: str, factory: Callable[..., object], options: Mapping[str, str], local: Collection[str]
) -> dict[str, str]:
    """The options that must be equal on all nodes of a run, as text, with defaults.

    Paths and the options in `local` may differ between nodes, and are left out. Raises what `parse_options` raises.
    """
    parameters = inspect.signature(factory).parameters
    defaults = {key: value.default for key, value in parameters.items() if value.kind in _BY_KEYWORD}
    values = defaults | parse_options(name, factory, options)
    return {
        key: shortened(str(value))
        for key, value in values.items()
        if key not in local
        and isinstance(value, bool | int | float | str | None)
        and not _is_path(parameters.get(key))
    }


def _is_path(parameter: inspect.Parameter | None) -> bool:
    """Decides by the annotation, because the value of a path may be None or a string."""
    return parameter is not None and "Path" in str(parameter.annotation)


_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _parse(name: str, factory: Callable[..., object], parameter: inspect.Parameter | None, key: str, text: str) -> Any:
    assert parameter is not None
    annotation = _annotation(name, factory, parameter)
    try:
        return _value(annotation, text)
    except ValueError:
        raise TaskError(f"task {name!r}: option {key} cannot be {text!r}", f"give {_wanted(annotation)}") from None
    except TypeError:
        raise TaskError(
            f"task {name!r}: option {key!r} has the type {annotation!r}, which cannot be given as text",
            "annotate the parameter as int, float, bool, str, pathlib.Path or Literal, optionally with | None",
        ) from None


def _annotation(name: str, factory: Callable[..., object], parameter: inspect.Parameter) -> Any:
    """The resolved type of one parameter. Other parameters are not resolved, because they may have unknown types."""
    if parameter.annotation is parameter.empty:
        return type(parameter.default) if type(parameter.default) in _PARSERS else str
    target: Any = factory.func if isinstance(factory, functools.partial) else factory
    function = target.__init__ if inspect.isclass(target) else inspect.unwrap(target)
    holder = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    # A module may import these names for its type checker only.
    known = {"pathlib": pathlib, "typing": typing, "Any": typing.Any, "Literal": typing.Literal, "Path": pathlib.Path}
    try:
        return typing.get_type_hints(holder, globalns=known | getattr(function, "__globals__", {}))["it"]
    except Exception as error:
        raise TaskError(
            f"task {name!r}: the type {parameter.annotation!r} of {parameter.name!r} cannot be resolved ({error})",
            "import the type outside `if TYPE_CHECKING`",
        ) from error


def _value(annotation: Any, text: str) -> Any:
    """Converts a text; ValueError if the text is wrong, TypeError if no text can have this type."""
    if annotation in _PARSERS:
        return _PARSERS[annotation](text)
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return {str(choice): choice for choice in arguments}[text] if text in map(str, arguments) else _refuse(text)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        if types.NoneType in arguments and text.strip().lower() in ("", "none"):
            return None
        return _first_fit([choice for choice in arguments if choice is not types.NoneType], text)
    raise TypeError(annotation)


def _first_fit(choices: list[Any], text: str) -> Any:
    for choice in choices:
        try:
            return _value(choice, text)
        except ValueError:
            continue
    return _refuse(text)


def _refuse(text: str) -> typing.NoReturn:
    raise ValueError(text)


def _wanted(annotation: Any) -> str:
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join("none" if choice is types.NoneType else _wanted(choice) for choice in arguments)
    return _PLAIN_NAMES[annotation]
