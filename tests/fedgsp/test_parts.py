"""Tables of parts: what is built in, what installed packages add, and how their faults are told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from fedgsp import parts
from fedgsp.errors import ConfigError, RunError
from fedgsp.parts import Part, Parts
from fedgsp.settings.fields import setting

MODULE = """
from fedgsp.parts import Part
FINE = Part(help="fine", code="oddments:run")
NUMBER = 3
UNREADABLE = Part(help="its options are no settings", code="oddments:run", options=dict)

def run():
    raise KeyError("lost")
"""


@dataclass(frozen=True, slots=True)
class Options:
    size: int = setting(1, "size", least=1)


class Package:
    """Stands for the metadata of an installed package."""

    def __init__(self, name: str, version: str) -> None:
        self.name, self.version = name, version


def point(name: str, value: str, package: str = "oddments", version: str = "2") -> EntryPoint:
    return EntryPoint(name, value, "fedgsp.colours")._for(Package(package, version))  # type: ignore[attr-defined]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parts[Part]]:
    """A table with one part of FedGSP and what an installed package adds."""
    (tmp_path / "oddments.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    found = [
        point("fine", "oddments:FINE"),
        point("number", "oddments:NUMBER"),
        point("unreadable", "oddments:UNREADABLE"),
        point("absent", "oddments.nowhere:FINE"),
        point("red", "oddments:FINE"),
        point("twice", "oddments:FINE"),
        point("twice", "others:FINE", "others", "1"),
    ]
    monkeypatch.setattr(parts, "_installed", lambda: EntryPoints(found))
    for cached in (parts.load, parts._of_group):
        cached.cache_clear()
    yield Parts("colour", {"red": Part(help="red", code=len, options=Options)}, Part)
    for cached in (parts.load, parts._of_group):
        cached.cache_clear()
    sys.modules.pop("oddments", None)


def test_a_declaration_that_fails_is_told_with_its_line_for_every_part_of_its_module(
    table: Parts[Part], tmp_path: Path
) -> None:
    lines = MODULE.splitlines()
    lines.insert(3, 'WRONG = Part(help="wrong", cod="oddments:run")')
    (tmp_path / "oddments.py").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"colour fine .* unexpected keyword argument 'cod' \(oddments.py:4\)"):
        table["fine"]


def test_built_in_parts_come_first_and_then_those_of_packages_by_name(table: Parts[Part]) -> None:
    assert list(table) == ["red", "absent", "fine", "number", "twice", "unreadable"]
    assert table["red"].package == "", "a package cannot replace a part of FedGSP"
    assert str(table["fine"]) == "colour fine of package oddments 2"
    assert table.get("blue") is None
    assert "blue" not in table


def test_names_are_listed_without_an_import(table: Parts[Part]) -> None:
    assert "fine" in table
    assert table.packages()["fine"] == "oddments 2"
    assert "oddments" not in sys.modules


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("rde", "there is no colour 'rde'; did you mean 'red'?"),
        (
            "absent",
            "colour absent of package oddments 2 cannot be loaded from oddments.nowhere:FINE: ModuleNotFoundError",
        ),
        ("number", "colour number of package oddments 2 is a int; let the entry point oddments:NUMBER name a Part"),
        ("unreadable", "the options of colour unreadable of package oddments 2 cannot be read"),
        ("twice", "several packages add a colour twice: oddments 2, others 1; uninstall all but one"),
    ],
)
def test_a_part_that_cannot_be_had_is_refused_with_the_reason(table: Parts[Part], name: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        table[name]
    assert str(caught.value).startswith(told)


def test_what_outside_code_raises_names_the_part_its_package_and_the_place(table: Parts[Part]) -> None:
    part = table["fine"]
    with pytest.raises(RunError) as caught, part.guard():
        part.load()()
    assert caught.value.what == "colour fine of package oddments 2 raised KeyError: 'lost' (oddments.py:8)"
    assert caught.value.remedy == "update or correct that package, or choose another colour"


def test_an_exception_of_fedgsp_or_an_expected_one_passes(table: Parts[Part]) -> None:
    with pytest.raises(KeyError, match="ours"), table["red"].guard():
        raise KeyError("ours")
    with pytest.raises(KeyError, match="lost"), table["fine"].guard(KeyError):
        table["fine"].load()()
    with pytest.raises(ConfigError, match="a setting is wrong"), table["fine"].guard():
        raise ConfigError("a setting is wrong")


def test_options_are_read_with_the_name_of_the_part(table: Parts[Part]) -> None:
    assert table["red"].read({"size": "3"}) == Options(3)
    with pytest.raises(ConfigError, match="colour red: option size is '0'"):
        table["red"].read({"size": "0"})
    with pytest.raises(ConfigError, match="colour fine has no option 'size'"):
        table["fine"].read({"size": "1"})
