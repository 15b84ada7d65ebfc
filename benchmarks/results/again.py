"""Plays the settings of a summary once more, and compares the final models bit by bit."""

from __future__ import annotations

from pathlib import Path

from benchmarks import sweep
from benchmarks.results import code, runs, settings
from benchmarks.results.store import read
from benchmarks.results.summary import Summary
from fedgsp.errors import RunError
from top_server.record.directory import RunDirectory


def again(path: Path, out: Path, given: dict[str, str]) -> tuple[bool, str]:
    """Whether a run with the settings of a summary gives its models, and what to tell people.

    The run is recorded in `out`; if it is finished there, it is only compared. `given` has the places of the run's
    files, by setting and option. Raises UserError if a file is missing, or if the run fails.
    """
    kept = read(path)
    if not runs.finished(out):
        played = settings.with_files(kept["settings"], kept["files"], given)
        if not sweep.run({**played, "listen": "127.0.0.1:0"}, out):
            raise RunError(f"the run in {out} failed", f"see {sweep.beside(out, '.log')}")
    found = runs.digests(RunDirectory(out))
    wrong = sorted(
        name for name in kept["models"].keys() | found.keys() if kept["models"].get(name) != found.get(name)
    )
    if not wrong:
        return True, f"equal: {', '.join(found)}"
    return False, f"different: {', '.join(wrong)}\n{differences(kept)}"


def differences(kept: Summary) -> str:
    """What may be the reason of other bits."""
    here = code.machine_here(kept["settings"].get("device", "cpu"))
    lines = ["The same bits need the same code, the same torch and the same kind of machine."]
    for name, there in kept["with"].items():
        lines.append(f"  {name}: {there} in the summary, {here.get(name, 'none')} here")
    return "\n".join([*lines, f"  commit in the summary: {kept['code']['commit']}"])
