from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from fedgsp.tensors.memory import keep_freed
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


STEPS = """
import resource, sys
import numpy as np
from fedgsp.tensors import memory
memory.keep_freed()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [np.ones(1 << 20) for _ in range(8)]
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def resident():
    return int(open("/proc/self/statm").read().split()[1]) >> 8
if sys.argv[1] == "work":
    memory.at_work()
faults()
print(faults(), end=" ")
kept = resident()
memory.at_rest()
print(kept - resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's settings")
def test_a_step_finds_what_the_one_before_freed_and_it_is_given_back_when_work_ends() -> None:
    def measured(how: str) -> tuple[int, int]:
        out = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, check=True).stdout.split()
        return int(out[0]), int(out[1])

    (at_work, given_back), (otherwise, _) = measured("work"), measured("rest")
    assert at_work < 200 < otherwise
    assert given_back > 40  # MiB of the 64
