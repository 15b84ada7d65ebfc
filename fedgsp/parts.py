"""Parts that schemes are made of: built in, or added by an installed package through Python entry points.

Each kind of part (grouping, profile, merge, ...) has one table. A package adds a part to it by an entry point of group
`fedgsp.KINDs`, such as `fedgsp.groupings`; the entry point's name is the part's name. The entry point is read only
when the part is used, and only the process that runs the part imports its code, so that processes start quickly.
"""

import contextlib
import functools
import importlib
import operator
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedgsp.errors import ConfigError, RunError, UserError
from fedgsp.options import suggestion
from fedgsp.settings.fields import described, read_options

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NoOptions:
    """The options of a part that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The declaration of a part: what every process may know without importing the part's code."""

    #: One sentence for `--help`, without a full stop.
    help: str
    #: The code, or its place "package.module:attribute", which only the process that runs the part imports.
    code: Any
    #: A frozen dataclass whose fields are made by `fedgsp.settings.fields.setting`.
    options: type[Any] = NoOptions
    #: Choices of the scheme that the part needs: the kind of another part -> the names that fit.
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: What the part with these options needs of the task, of `fedgsp.scoring.LACKS`.
    needs_of_task: Callable[[Any], tuple[str, ...]] = lambda _: ()
    #: These three are filled in by the table. The package has its version; it is empty for a part of FedGSP.
    kind: str = ""
    name: str = ""
    package: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" of package {self.package}" if self.package else "")

    def read(self, given: Mapping[str, str]) -> Any:
        """The options of the part, read from texts; raises ConfigError for an unknown name or a wrong value."""
        with self.guard():
            return read_options(self.options, f"{self.kind} {self.name}", given)

    def load(self) -> Any:
        """The code of the part; raises ConfigError if it cannot be imported."""
        return load(f"{self.kind} {self.name}", self.code, self.package) if isinstance(self.code, str) else self.code

    @contextlib.contextmanager
    def guard(self, *expected: type[Exception]) -> Iterator[None]:
        """Within, an exception of outside code is raised as a RunError that names the part and its package.

        UserError and the `expected` exceptions pass, and so does every exception of a part of FedGSP.
        """
        try:
            yield
        except Exception as error:
            if not self.package or isinstance(error, (UserError, *expected)):
                raise
            raise self.fault(error) from error

    def fault(self, error: Exception) -> RunError:
        """The error of a run in which the code of this part raised an exception; says where in its package."""
        places = self.places(error)
        shown = f"{type(error).__name__}: {error}" + (f" ({places[-1]})" if places else "")
        return RunError(f"{self} raised {shown}", f"update or correct that package, or choose another {self.kind}")

    def places(self, error: Exception) -> list[str]:
        """The lines of the part's package that an exception passed through, outermost first."""
        top = re.split("[.:]", self.code if isinstance(self.code, str) else getattr(self.code, "__module__", ""))[0]
        return _places(error, top)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWithNeeds(Part):
    """The declaration of a part that needs more than FedGSP to work, which can be known before a run begins."""

    #: Modules that must be installed -> the requirement that pip understands.
    packages: Mapping[str, str] = field(default_factory=dict)
    #: Refuses options that cannot be used, without a try; raises UserError.
    check: Callable[[Any], None] = lambda _: None

    def usable(self, given: Mapping[str, str]) -> Any:
        """The options of the part, read from texts; raises UserError if the part cannot be used with them here."""
        options = self.read(given)
        for module, requirement in self.packages.items():
            if find_spec(module) is None:
                raise ConfigError(f"{self} needs a package that is not installed", f"pip install '{requirement}'")
        self.load()
        with self.guard():
            self.check(options)
        return options


class Parts(Mapping[str, T], Generic[T]):
    """The parts of one kind by name: those of FedGSP first, then those of installed packages by name.

    It lists the names that a user may choose; parts of FedGSP for its own use can be looked up all the same.
    """

    def __init__(
        self,
        kind: str,
        built_in: Mapping[str, T],
        expected: type[Any],
        *,
        shown: Callable[[T], bool] = lambda _: True,
        undeclared: Callable[[str], T] | None = None,
    ) -> None:
        """`shown` says which parts of FedGSP a user may choose.

        `undeclared` is for kinds whose entry points name the code itself: it makes a declaration from the text
        "module:attribute".
        """
        self.kind = kind
        self.built_in = {name: self._filled_in(part, name) for name, part in built_in.items()}
        self._expected = expected
        self._shown = shown
        self._undeclared = undeclared

    def __iter__(self) -> Iterator[str]:
        yield from (name for name, part in self.built_in.items() if self._shown(part))
        yield from sorted(self._outside().keys() - self.built_in.keys())

    def __len__(self) -> int:
        return len(tuple(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self._outside()

    def __getitem__(self, name: str) -> T:
        """The part of that name; raises ConfigError if there is none, or if its package is broken."""
        if name in self.built_in:
            return self.built_in[name]
        points = self._outside().get(name)
        if points is None:
            raise ConfigError(f"there is no {self.kind} {name!r}", suggestion(name, self))
        if len(points) > 1:
            raise ConfigError(
                f"several packages add a {self.kind} {name}: {', '.join(map(_package, points))}",
                "uninstall all but one",
            )
        return self._load(points[0])

    def get(self, name: str, default: Any = None) -> Any:
        """The part of that name, or the default if there is none; raises ConfigError if its package is broken."""
        if name not in self:
            return default
        return self[name]

    def packages(self) -> dict[str, str]:
        """The installed package, with its version, that adds each part that is not of FedGSP; imports none of them."""
        return {name: _package(points[0]) for name, points in self._outside().items() if name not in self.built_in}

    def _outside(self) -> Mapping[str, tuple[EntryPoint, ...]]:
        return _of_group(f"fedgsp.{self.kind}s")

    def _filled_in(self, part: T, name: str, package: str = "") -> T:
        return replace(part, kind=self.kind, name=name, package=package) if isinstance(part, Part) else part

    def _load(self, point: EntryPoint) -> T:
        package, what = _package(point), f"{self.kind} {point.name}"
        part = self._undeclared(point.value) if self._undeclared else load(what, point.value, package)
        if not isinstance(part, self._expected):
            raise ConfigError(
                f"{what} of package {package} is a {type(part).__name__}",
                f"let the entry point {point.value} name a {self._expected.__name__}",
            )
        try:
            described(part.options if isinstance(part, Part) else NoOptions)
        except Exception as error:  # the class comes from another package
            raise ConfigError(
                f"the options of {what} of package {package} cannot be read: {type(error).__name__}: {error}",
                "let `options` be a dataclass whose fields are made by fedgsp.settings.fields.setting",
            ) from error
        return self._filled_in(part, point.name, package)


@contextlib.contextmanager
def guarded(parts: Iterable[Part]) -> Iterator[None]:
    """Within, an exception that passed through the code of an outside part is raised as a RunError that names it."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        part = next((part for part in parts if part.package and part.places(error)), None)
        if part is None:
            raise
        raise part.fault(error) from error


@functools.cache
def load(what: str, value: str, package: str = "") -> Any:
    """The object named by "package.module:attribute"; raises ConfigError that says what of which package is broken."""
    module, _, attribute = value.partition(":")
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module))
    except (Exception, SystemExit) as error:  # code of another package may raise anything
        places = _places(error, module.partition(".")[0])
        raise ConfigError(
            f"{what}{f' of package {package}' if package else ''} cannot be loaded from {value}:"
            f" {type(error).__name__}: {error}{f' ({places[-1]})' if places else ''}",
            "update or correct that package, or uninstall it",
        ) from error


def _places(error: BaseException, top: str) -> list[str]:
    """The lines of a package, by its outermost name, that an exception passed through, outermost first."""
    return [
        f"{Path(frame.f_code.co_filename).name}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] == top
    ]


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "without a name"


@functools.cache
def _installed() -> Any:
    return entry_points()  # reads the metadata of every installed package


@functools.cache
def _of_group(group: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in _installed().select(group=group):
        known = found.get(point.name, ())
        if point.value not in [other.value for other in known]:
            found[point.name] = (*known, point)
    return found
