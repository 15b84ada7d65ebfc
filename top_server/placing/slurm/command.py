"""The command of `top-server` for Slurm."""

from pathlib import Path
from typing import Annotated

import typer

from fedgsp.errors import ConfigError
from fedgsp.settings.flags import settled
from fedgsp.settings.run import RunConfig


def slurm(
    config_file: Annotated[Path, typer.Option("--config", metavar="FILE", help="the settings of the run in TOML")],
    run_dir: Annotated[Path, typer.Option(metavar="DIRECTORY", help="where the run is recorded, on a shared disk")],
    time: Annotated[
        str, typer.Option(help="time limit of each job, such as 4:00:00; by default that of the partition")
    ] = "",
    partition: Annotated[str, typer.Option(help="partition of the job; by default that of the cluster")] = "",
    account: Annotated[str, typer.Option(help="account that the job is charged to")] = "",
    cpus: Annotated[int, typer.Option(min=1, help="processors of the top server and its group managers")] = 2,
    memory: Annotated[str, typer.Option(help="memory of the job, such as 4G; by default that of the partition")] = "",
    notice: Annotated[
        int, typer.Option(min=30, max=3600, help="seconds before the time limit at which the run stops")
    ] = 120,
    sbatch: Annotated[str, typer.Option(help="further flags of sbatch, such as '--qos=long --comment=trial'")] = "",
) -> None:
    """Print the script of a Slurm job that plays a run, and goes back into the queue until the run is finished."""
    from top_server.choosing import NAMES
    from top_server.placing.slurm.job import Job, script
    from top_server.placing.slurm.options import SlurmOptions, flags_of

    settings = settled(RunConfig, config_file, {}, NAMES)
    if settings.run_dir is not None:
        raise ConfigError("run_dir in --config and --run-dir are two directories", "leave run_dir out of --config")
    try:
        options = SlurmOptions(time=time, partition=partition, account=account, sbatch=sbatch)
    except ValueError as error:
        raise ConfigError(str(error), "see `man sbatch`") from None
    more = flags_of({"cpus-per-task": str(cpus), "mem": memory})
    paths = config_file.absolute(), run_dir.absolute(), Path.cwd()
    for path in paths:
        if "\n" in str(path) or '"' in str(path):
            raise ConfigError(f"the path {str(path)!r} cannot stand in a job script", "use another one")
    config, directory, here = paths
    job = Job(config=config, run_dir=directory, directory=here, flags=[*more, *options.flags], notice_s=notice)
    typer.echo(script(job), nl=False)
