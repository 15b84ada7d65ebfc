"""Place `slurm`: the workers of a run are the tasks of a job array."""
