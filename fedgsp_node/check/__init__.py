"""`fedgsp-node check`: whether this node could take part in a run, found before the first round.

Coroutines and threads collect facts (`network`, `local`); pure functions judge them (`table`).
"""
