from __future__ import annotations

import pytest

from top_server.placing.ray.words import lacks_package, missing, refusal, why_lost

ONE = {"CPU": 1.0}
SMALL, LARGE = {"CPU": 2.0, "memory": 2.0**30}, {"CPU": 8.0, "GPU": 1.0, "memory": 2.0**31}


@pytest.mark.parametrize(
    ("asked", "machines", "said"),
    [
        (ONE, [], "the cluster has no machine"),
        (ONE, [SMALL, LARGE], "each machine with 1 CPU is taken; there are 2"),
        ({"CPU": 4.0}, [SMALL, LARGE], "each machine with 4 CPUs is taken; there is 1"),
        (
            {"CPU": 0.5, "GPU": 2.0},
            [SMALL, LARGE],
            "no machine of 2 has 0.5 CPUs and 2 GPUs; a machine has at most 8 CPUs and 1 GPU",
        ),
        (
            {"CPU": 4.0, "GPU": 1.0},
            [{"CPU": 8.0}, {"CPU": 2.0, "GPU": 1.0}],
            "no machine of 2 has 4 CPUs and 1 GPU together; a machine has at most 8 CPUs and 1 GPU",
        ),
        (
            {"CPU": 1.0, "memory": 3 * 2.0**30},
            [SMALL],
            "no machine of 1 has 1 CPU and 3,072 MiB of memory; a machine has at most 2 CPUs and 1,024 MiB of memory",
        ),
    ],
)
def test_what_is_missing_is_named(asked: dict[str, float], machines: list[dict[str, float]], said: str) -> None:
    assert missing(asked, machines) == said


#: As Ray 2.60 says it.
NODE = """The actor died unexpectedly before finishing this task.
\tclass_name: Machine
\tactor_id: 0a08fc9a
The actor died because its node has died. Node Id: dbaf2ed9
\tthe actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats
"""
TASK = """\x1b[36mray::Machine.begin()\x1b[39m (pid=26670, ip=10.0.0.7)
  File "machine.py", line 20, in begin
FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/x'"""


def test_the_reason_of_a_loss_is_the_end_of_what_ray_says() -> None:
    assert why_lost(NODE) == (
        "the actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats"
    )
    assert why_lost(TASK) == "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/x'"
    assert why_lost("x\n\x1b[31mred\x1b[0m.\n") == "red"
    assert why_lost(" \n") == "Ray gives no reason"
    assert len(why_lost("word " * 1000)) <= 300


def test_a_machine_without_a_package_is_told_from_other_losses() -> None:
    said = lacks_package("ModuleNotFoundError: No module named 'top_server'")
    assert "No module named 'top_server'" in said
    assert "Install FedGSP there" in said
    assert lacks_package("Failed to create actor. You set the async flag, but the actor has no coroutines")
    assert lacks_package(why_lost(NODE)) == ""


def test_a_refusal_says_what_to_do() -> None:
    what, remedy = refusal("Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10", "auto")
    assert what.endswith("Ray: 2.9.0 Python: 3.10")
    assert "versions" in remedy
    what, remedy = refusal("Could not find any running Ray instance.", "auto")
    assert what == "there is no Ray cluster to use at auto: Could not find any running Ray instance"
    assert "ray start --head" in remedy
