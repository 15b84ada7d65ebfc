"""Makes the stubs in fedgsp/v1 from the contract in protos/; with --check, only says whether they are in step."""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STUBS = Path("fedgsp/v1")


def generate(out: Path) -> None:
    """Writes `out`/fedgsp/v1/*_pb2*; raises CalledProcessError where the compiler refuses the contract."""
    plugins = Path(sysconfig.get_path("scripts"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "protos"]
    command += [f"--plugin=protoc-gen-{name}={plugins / f'protoc-gen-{name}'}" for name in ("mypy", "mypy_grpc")]
    command += [f"--python_out={out}", f"--grpc_python_out={out}", f"--mypy_out=quiet:{out}"]
    command += [f"--mypy_grpc_out=quiet:{out}"]
    command += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").rglob("*.proto"))
    subprocess.run(command, cwd=ROOT, check=True)


def contents(root: Path) -> dict[str, bytes]:
    """Name and bytes of every stub below `root`."""
    return {path.name: path.read_bytes() for path in (root / STUBS).glob("*_pb2*.py*")}


def differences() -> list[str]:
    """What is wrong with the committed stubs, a line for each file."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh, committed = contents(Path(folder)), contents(ROOT)
    found = [f"{STUBS / name} is missing" for name in fresh.keys() - committed.keys()]
    found += [f"{STUBS / name} has no proto" for name in committed.keys() - fresh.keys()]
    found += [f"{STUBS / name} differs" for name in fresh.keys() & committed.keys() if fresh[name] != committed[name]]
    return sorted(found)


def replace() -> None:
    """Makes the committed stubs anew; a contract that does not compile leaves them as they were."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = contents(Path(folder))
    for name in contents(ROOT):
        (ROOT / STUBS / name).unlink()
    for name, content in fresh.items():
        (ROOT / STUBS / name).write_bytes(content)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if stubs are not in step")
    try:
        if not parser.parse_args().check:
            replace()
        elif found := differences():
            sys.exit("\n".join([*found, "run `make protos`"]))
    except subprocess.CalledProcessError:
        sys.exit("the contract does not compile")


if __name__ == "__main__":
    main()
