"""Generates fedgsp/v1 and fedgsp/messages from protos/. With --check, only says whether they are up to date."""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STUBS, MESSAGES = Path("fedgsp/v1"), Path("fedgsp/messages")
#: How a generated module of fedgsp/messages begins. The other modules there are written by hand.
MADE = b"# Made by scripts/protos.py from "


def generate(out: Path, contract: Path = ROOT / "protos") -> None:
    """Writes all generated files below `out`; CalledProcessError if the files below `contract` do not compile."""
    plugins, descriptors = Path(sysconfig.get_path("scripts")), out / "descriptors"
    command: list[str | Path] = [sys.executable, "-m", "grpc_tools.protoc", "-I", contract]
    command += [f"--plugin=protoc-gen-{name}={plugins / f'protoc-gen-{name}'}" for name in ("mypy", "mypy_grpc")]
    command += [f"--python_out={out}", f"--grpc_python_out={out}", f"--mypy_out=quiet:{out}"]
    command += [f"--mypy_grpc_out=quiet:{out}", f"--descriptor_set_out={descriptors}"]
    command += ["--include_imports", "--include_source_info", "--retain_options"]
    subprocess.run([*command, *sorted(contract.rglob("*.proto"))], check=True)
    subprocess.run([sys.executable, ROOT / "scripts" / "message_classes.py", descriptors, out], check=True)


def contents(root: Path) -> dict[Path, bytes]:
    """Path and bytes of every generated file below `root`."""
    paths = [*(root / STUBS).glob("*_pb2*.py*"), *(root / MESSAGES).glob("*.py")]
    found = {path.relative_to(root): path.read_bytes() for path in paths}
    return {path: content for path, content in found.items() if path.parent == STUBS or content.startswith(MADE)}


def differences() -> list[str]:
    """One line for each committed file that is missing, not needed or not up to date."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh, committed = contents(Path(folder)), contents(ROOT)
    found = [f"{path} is missing" for path in fresh.keys() - committed.keys()]
    found += [f"{path} has no proto" for path in committed.keys() - fresh.keys()]
    found += [f"{path} differs" for path in fresh.keys() & committed.keys() if fresh[path] != committed[path]]
    return sorted(found)


def replace() -> None:
    """Generates the committed files again. They do not change if the .proto files do not compile."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = contents(Path(folder))
    for path in contents(ROOT).keys() - fresh.keys():
        (ROOT / path).unlink()
    for path, content in fresh.items():
        (ROOT / path).write_bytes(content)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change no file; exit code 1 if files are not up to date")
    try:
        if not parser.parse_args().check:
            replace()
        elif found := differences():
            sys.exit("\n".join([*found, "run `make protos`"]))
    except subprocess.CalledProcessError:
        sys.exit("the files in protos/ do not compile")


if __name__ == "__main__":
    main()
