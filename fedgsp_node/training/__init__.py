"""Local training: the code of each row of `fedgsp.trainings`, and what all of them share."""
