"""The options of place `slurm`, and what they become for `sbatch`."""

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from fedgsp.settings.fields import setting
from top_server.placing.base import RemoteOptions, Resources

#: How Slurm writes a duration: 30, 90:00, 2:00:00, 1-12, 1-12:30:00.
_TIME = re.compile(r"([0-9]+-)?[0-9]+(:[0-9]{1,2}){0,2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SlurmOptions(RemoteOptions):
    """Options of place `slurm`."""

    partition: str = setting("", "partition of the workers; by default that of the cluster")
    account: str = setting("", "account that the workers are charged to")
    qos: str = setting("", "quality of service of the workers")
    time: str = setting("", "time limit of each worker, such as 4:00:00; by default that of the partition")
    sbatch: str = setting("", "further flags of sbatch, such as '--constraint=avx512 --exclude=node7'")
    poll: float = setting(5.0, "seconds between two looks at the queue", least=0.1, most=600)

    def __post_init__(self) -> None:
        if self.time and not _TIME.fullmatch(self.time):
            raise ValueError(f"option time is {self.time!r}: write minutes, hours:minutes:seconds or days-hours")
        words(self.sbatch, "sbatch")

    @property
    def flags(self) -> list[str]:
        """The flags of sbatch for these options, without those for resources."""
        named = {"partition": self.partition, "account": self.account, "qos": self.qos, "time": self.time}
        return [*flags_of(named), *words(self.sbatch, "sbatch")]


@dataclass(frozen=True, slots=True)
class StepOptions(RemoteOptions):
    """Options of place `srun`."""

    srun: str = setting("", "further flags of srun, such as '--distribution=cyclic'")

    def __post_init__(self) -> None:
        words(self.srun, "srun")


def words(text: str, option: str) -> list[str]:
    """The flags in the text of an option; raises ValueError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"option {option} is {text!r}: {error}") from None


def flags_of(named: Mapping[str, str]) -> list[str]:
    """Flags of sbatch from their names and values; those without a value are left out."""
    return [f"--{name}={value}" for name, value in named.items() if value]


def resource_flags(resources: Resources) -> list[str]:
    """The flags of sbatch for the resources of a task. Slurm deals whole processors and GPUs."""
    gpus = math.ceil(resources.gpus)
    return flags_of(
        {
            "cpus-per-task": str(math.ceil(resources.cpus)),
            "gres": f"gpu:{gpus}" if gpus else "",
            "mem": f"{resources.memory}M" if resources.memory else "",
        }
    )
