"""The committed stubs and messages are what the contract gives, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import protos


@pytest.mark.slow  # make check does the same
def test_generated_files_are_those_of_the_contract(tmp_path: Path) -> None:
    protos.generate(tmp_path)
    fresh, committed = protos.contents(tmp_path), protos.contents(protos.ROOT)
    assert sorted(committed) == sorted(fresh)
    assert {path.parent for path in fresh} == {protos.STUBS, protos.MESSAGES}
    for path, content in fresh.items():
        assert committed[path] == content, f"{path} is out of step: run `make protos`"


def test_every_proto_is_of_the_package_that_its_folder_says() -> None:
    folder = protos.ROOT / "protos"
    found = list(folder.rglob("*.proto"))
    assert found
    for path in found:
        package = ".".join(path.parent.relative_to(folder).parts)
        assert f"package {package};" in path.read_text(encoding="utf-8").splitlines(), path
