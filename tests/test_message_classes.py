"""What the generator of `fedgsp.messages` makes of a contract, and which contracts it refuses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import protos

HEAD = """
// What animals say.
syntax = "proto3";
package fedgsp.v1;
import "fedgsp/v1/options.proto";
"""
ANIMALS = """
// How loud an animal is.
enum NoiseLevel {
  NOISE_LEVEL_UNSPECIFIED = 0;
  NOISE_LEVEL_LOW = 1;  // Below 40 dB.
}

// Not seen in Python.
message Echo {
  option (wire_only) = true;
}

// An animal.
//
// It need not exist.
message Animal {
  oneof kind {
    Cat cat = 4;
    Dog dog = 2;
  }
  // In years.
  uint32 age = 1;
  repeated Cat friends = 3 [(may_omit) = true];
  NoiseLevel level = 5 [(may_omit) = true];
  bool alive = 6 [(one_if_omitted) = true];
  map<string, double> weights = 7 [(may_omit) = true];
}

// A cat.
message Cat {}

// A dog.
message Dog {}
"""
EXPECTED = '''# Made by scripts/protos.py from protos/fedgsp/v1/animals.proto; do not edit.
"""What animals say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class NoiseLevel(IntEnum):
    """How loud an animal is."""

    UNSPECIFIED = 0
    #: Below 40 dB.
    LOW = 1


@dataclass(frozen=True, slots=True)
class Animal:
    """An animal.

    It need not exist.
    """

    kind: Cat | Dog | None
    #: In years.
    age: int
    friends: tuple[Cat, ...] = ()
    level: NoiseLevel = NoiseLevel.UNSPECIFIED
    alive: bool = True
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cat:
    """A cat."""


@dataclass(frozen=True, slots=True)
class Dog:
    """A dog."""
'''


def generated(folder: Path, contract: str) -> Path:
    """The folder of modules that are generated from a contract of one file."""
    source = folder / "protos" / "fedgsp" / "v1"
    source.mkdir(parents=True)
    shutil.copy(protos.ROOT / "protos" / "fedgsp" / "v1" / "options.proto", source)
    (source / "animals.proto").write_text(HEAD + contract, encoding="utf-8")
    out = folder / "out"
    out.mkdir()
    protos.generate(out, folder / "protos")
    return out / protos.MESSAGES


def test_comments_defaults_and_kinds_become_those_of_a_class(tmp_path: Path) -> None:
    folder = generated(tmp_path, ANIMALS)
    assert (folder / "animals.py").read_text(encoding="utf-8") == EXPECTED
    exports = (folder / "__init__.py").read_text(encoding="utf-8")
    assert "from fedgsp.messages.animals import Animal, Cat, Dog, NoiseLevel\n" in exports
    assert "PROTOCOL" in exports, "hand-written modules are exported, too"
    assert "Echo" not in exports


@pytest.mark.parametrize(
    ("contract", "reason"),
    [
        ("message Cat {}", "has no comment"),
        (
            "// A cat.\nmessage Cat {\n  oneof name {\n    string first = 1;\n    string last = 2;\n  }\n}",
            "oneof needs",
        ),
    ],
)
def test_a_contract_without_a_form_in_python_is_refused(
    tmp_path: Path, contract: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        generated(tmp_path, contract)
    assert reason in capfd.readouterr().err
