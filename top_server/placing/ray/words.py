"""What Ray says and shows, in our words. Pure."""

from collections.abc import Iterable, Mapping

from fedgsp.words import counted

#: What a worker asks for -> the resource of Ray, and how many of its units are one of ours.
RESOURCES = {"CPUs": ("CPU", 1), "GPUs": ("GPU", 1), "MiB of memory": ("memory", 1 << 20)}


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
    return (
        f"none of {counted(len(found), 'machine')} has {_in_words(asked)}{together}; a machine has at most"
        f" {_in_words(largest)}"
    )


def why_lost(text: str) -> str:
    """Why an actor has died, of what Ray says of it in many lines."""
    lines = [line.strip().removesuffix(".") for line in text.splitlines() if line.strip()]
    if not lines:
        return "Ray gives no reason"
    fitting = [line for line in lines if "ModuleNotFoundError: " in line or " because " in line]
    return fitting[0] if fitting else lines[-1 if "Traceback" in text else 0]


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
    parts = [
        f"{amounts[name] / unit:,.6g} {words}"
        for words, (name, unit) in RESOURCES.items()
        if name in amounts
    ]
    return " and ".join(parts)
