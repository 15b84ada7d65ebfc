"""What becomes of a run's models after the run: whole models as files, and their scores on a site's own data."""
