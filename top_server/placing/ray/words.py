"""What Ray says and shows, in our words. Pure."""

import re
from collections.abc import Iterable, Mapping
from textwrap import shorten

#: The resources of a worker as Ray names them, with how many units of Ray's are one of ours, and our words for one and
#: for several.
_RESOURCES = {
    "CPU": (1, "CPU", "CPUs"),
    "GPU": (1, "GPU", "GPUs"),
    "memory": (1 << 20, "MiB of memory", "MiB of memory"),
}
#: How Ray begins if an actor cannot be imported; the second is of Ray 2.40, which does not say more.
_NOT_IMPORTED = ("ModuleNotFoundError: ", "Failed to create actor. You set the async flag")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MOST_CHARACTERS = 300


def missing(asked: Mapping[str, float], machines: Iterable[Mapping[str, float]]) -> str:
    """What the machines of a cluster lack, with all their resources, for a worker that asks for `asked`.

    Both are by the names that Ray gives to resources.
    """
    found = list(machines)
    if not found:
        return "the cluster has no machine"
    if fits := sum(all(machine.get(name, 0) >= amount for name, amount in asked.items()) for machine in found):
        return f"each machine with {_in_words(asked)} is taken; there {'is' if fits == 1 else 'are'} {fits}"
    largest = {name: max(machine.get(name, 0) for machine in found) for name in asked}
    together = " together" if all(largest[name] >= amount for name, amount in asked.items()) else ""
    return f"no machine of {len(found)} has {_in_words(asked)}{together}; a machine has at most {_in_words(largest)}"


def why_lost(text: str) -> str:
    """Why an actor has died: the end of what Ray says of it in many lines."""
    lines = [line.strip().removesuffix(".") for line in _COLOUR.sub("", text).splitlines() if line.strip()]
    return shorten(lines[-1], _MOST_CHARACTERS, placeholder=" ...") if lines else "Ray gives no reason"


def lacks_package(reason: str) -> str:
    """What to say of the loss of an actor that could not be imported; empty if that is not the reason."""
    if not reason.startswith(_NOT_IMPORTED):
        return ""
    return f"the machine lacks a package: {reason}. Install FedGSP there, in the Python of Ray, as it is here"


def refusal(text: str, address: str) -> tuple[str, str]:
    """What is wrong when Ray refuses a connection, and what to do."""
    said = " ".join(text.split()).removesuffix(".")
    if "ersion mismatch" in said:
        return (
            f"the Ray cluster at {address} runs other versions: {said}",
            "install the cluster's versions of Ray and Python here",
        )
    return (
        f"there is no Ray cluster to use at {address}: {said}",
        "start one with `ray start --head`, correct option address of place ray, or use address=local",
    )


def _in_words(amounts: Mapping[str, float]) -> str:
    parts = []
    for name, (unit, one, several) in _RESOURCES.items():
        if name in amounts:
            amount = amounts[name] / unit
            parts.append(f"{amount:,.6g} {one if amount == 1 else several}")
    return " and ".join(parts)
