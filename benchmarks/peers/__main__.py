"""Measures Flower and NVFlare with the same work as FedGSP: `python -m benchmarks.peers --env DIR`.

Their requirements conflict with those of FedGSP. So they are installed in a separate environment, which is created if
it is missing. Each case prints one JSON object; `--repeats` repeats every case. This takes about ten minutes on two
cores, and needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
SYSTEMS = ("flower", "flare")
#: Seconds in addition to the limit of a case, for its start and end.
CASE_TIMEOUT = 400.0


def install(folder: Path) -> Path:
    """The environment's Python, after the current requirements are installed."""
    python, installed = folder / "bin" / "python", folder / "installed"
    if not installed.exists() or installed.read_text() != REQUIREMENTS.read_text():
        sys.stderr.write(f"installing into {folder}, once; this takes some minutes\n")
        if not python.exists():
            venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
        installed.write_text(REQUIREMENTS.read_text())
    return python


def ask(python: Path, system: str, *words: str) -> str | None:
    """The output of a system's command line; empty if it failed."""
    process = subprocess.Popen(
        [python, "-m", f"benchmarks.peers.{system}", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), "FLWR_TELEMETRY_ENABLED": "0"},
    )
    try:
        text, _ = process.communicate(timeout=CASE_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.communicate()
        return None
    return text if process.returncode == 0 else None


def measure(python: Path, system: str, case: str, repeats: int) -> dict[str, Any] | None:
    """The object of a case, with the seconds and memory peaks of all repetitions."""
    found = [json.loads(text) for _ in range(repeats) if (text := ask(python, system, case))]
    if not found:
        return None
    seconds = [each for one in found for each in one["seconds"]]
    peaks = [each for one in found for each in one["peak_mib"]]
    return {**found[-1], "seconds": seconds, "peak_mib": peaks}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, required=True, help="folder of the environment, created if missing")
    parser.add_argument("--repeats", type=int, default=1, help="number of runs per case (default 1)")
    parser.add_argument("--out", type=Path, help="also write the objects to this file, one per line")
    flags = parser.parse_args()
    python = install(flags.env.resolve())
    objects, failed = [], []
    for system in SYSTEMS:
        for case in (ask(python, system) or "").split():
            sys.stderr.write(f"measuring {system} {case} ...\n")
            found = measure(python, system, case, flags.repeats)
            if found is None:
                failed.append(f"{system} {case}")
                continue
            objects.append(found)
            median = f"{statistics.median(found['seconds']):.3g} s, " if found["seconds"] else ""
            sys.stderr.write(f"  {median}{max(found['peak_mib']):.0f} MiB; {found['note']}\n")
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
    if flags.out:
        flags.out.write_text("".join(json.dumps(found) + "\n" for found in objects))
    if failed or not objects:
        sys.stderr.write(f"failed: {', '.join(failed) or 'every system'}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
