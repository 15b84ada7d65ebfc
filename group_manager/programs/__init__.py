"""In-group programs: the code of each row of `fedgsp.programs`."""
