"""Converts options given as text to the types with which a factory's parameters are annotated."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pathlib
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fedgsp.errors import TaskError
from fedgsp.options import shortened, suggestion, truth
from fedgsp_node.users_code import require

#: Type -> the function that converts a text, and what an error says should be given.
_PLAIN: dict[Any, tuple[Callable[[str], Any], str]] = {
    bool: (truth, "true or false"),
    float: (float, "a number"),
    int: (int, "a whole number"),
    str: (str, "text"),
    pathlib.Path: (lambda text: pathlib.Path(text).expanduser(), "a path"),
    typing.Any: (str, "text"),
}
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def parse_options(name: str, factory: Callable[..., object], options: Mapping[str, str]) -> dict[str, Any]:
    """Keyword arguments for `factory`; TaskError for an unknown or missing option, or a value of the wrong type."""
    parameters = inspect.signature(factory).parameters
    accepted = {key: value for key, value in parameters.items() if value.kind in _BY_KEYWORD}
    # A parameter **rest accepts every other option.
    rest = [value for value in parameters.values() if value.kind is inspect.Parameter.VAR_KEYWORD]
    for key in options:
        if key not in accepted and not rest:
            raise TaskError(f"task {name!r} has no option {key!r}", suggestion(key, accepted, "it takes"))
    for key, value in accepted.items():
        require(
            value.default is not value.empty or key in options,
            f"task {name!r} needs the option {key!r}",
            f"give --task-option {key}=VALUE",
        )
    return {key: _parse(name, factory, accepted.get(key) or rest[0], key, text) for key, text in options.items()}


def shared_options(
    name: str, factory: Callable[..., object], options: Mapping[str, str], local: Collection[str]
) -> dict[str, str]:
    """The options that must be equal on all nodes of a run, as text, with defaults.

    Paths and the options in `local` may differ between nodes, and are left out. Raises what `parse_options` raises.
    """
    parameters = inspect.signature(factory).parameters
    defaults = {key: value.default for key, value in parameters.items() if value.kind in _BY_KEYWORD}
    # The annotation decides what is a path, because the value of a path may be None or a string.
    paths = {key for key, parameter in parameters.items() if "Path" in str(parameter.annotation)}
    return {
        key: shortened(str(value))
        for key, value in (defaults | parse_options(name, factory, options)).items()
        if key not in local and key not in paths and isinstance(value, bool | int | float | str | None)
    }


def _parse(name: str, factory: Callable[..., object], parameter: inspect.Parameter, key: str, text: str) -> Any:
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
        return type(parameter.default) if type(parameter.default) in _PLAIN else str
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
    if annotation in _PLAIN:
        return _PLAIN[annotation][0](text)
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        named = {str(choice): choice for choice in arguments}
        if text in named:
            return named[text]
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        if types.NoneType in arguments and text.strip().lower() in ("", "none"):
            return None
        for choice in arguments:
            with contextlib.suppress(ValueError):
                if choice is not types.NoneType:
                    return _value(choice, text)
    else:
        raise TypeError(annotation)
    raise ValueError(text)


def _wanted(annotation: Any) -> str:
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join("none" if choice is types.NoneType else _wanted(choice) for choice in arguments)
    return _PLAIN[annotation][1]
