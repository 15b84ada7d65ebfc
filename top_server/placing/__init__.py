"""Places: where the nodes of a run are started, and by whom."""

from typing import Any

from fedgsp.parts import Parts
from fedgsp.settings.run import RunConfig
from top_server.placing.base import Place
from top_server.placing.ray.options import RayOptions
from top_server.placing.ray.options import check as check_ray
from top_server.placing.slurm.commands import check_allocation, check_installed
from top_server.placing.slurm.options import SlurmOptions, StepOptions

PLACES: Parts[Place] = Parts(
    "place",
    {
        "local": Place(help="on this machine", code="top_server.placing.local:Local"),
        "ray": Place(
            help="in a Ray cluster",
            code="top_server.placing.ray.place:Ray",
            options=RayOptions,
            remote=True,
            packages={"ray": "ray>=2.40"},
            check=check_ray,
            runs=("address", "working_dir"),
        ),
        "srun": Place(
            help="steps of the Slurm allocation in which the top server runs",
            code="top_server.placing.slurm.steps:Steps",
            options=StepOptions,
            remote=True,
            check=lambda _: check_allocation(),
            runs=("srun",),
        ),
        "slurm": Place(
            help="tasks of a job array that Slurm starts in a cluster",
            code="top_server.placing.slurm.place:Slurm",
            options=SlurmOptions,
            remote=True,
            check=lambda _: check_installed(),
            runs=("sbatch",),
        ),
    },
    Place,
)


def chosen(config: RunConfig) -> tuple[Place, Any] | None:
    """The place of a run with its options; None if the run starts no nodes. Raises UserError if it cannot be used."""
    if config.placed is None:
        return None
    place = PLACES[config.placed]
    return place, place.usable(config.place_option)
