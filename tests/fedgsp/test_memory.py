from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from fedgsp.memory import keep_freed
if sys.argv[1] == "keep":
    keep_freed()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [np.empty(1 << 20, np.uint8) for _ in range(7)]
    for array in held:
        array[::4096] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's settings")
def test_memory_that_was_freed_is_used_again_without_the_systems_help() -> None:
    def second_time(how: str) -> int:
        return int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, check=True).stdout)

    assert second_time("keep") < 200 < second_time("return")
