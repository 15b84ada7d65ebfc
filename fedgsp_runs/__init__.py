"""Runs on this machine from Python: in a script, a notebook or a test.

>>> from fedgsp_runs import run
>>> found = run("digits", scheme="fedgsp", rounds=5, clients=6)
>>> found.history["accuracy"].iloc[-1]
>>> state = found.model()
"""

from fedgsp_runs.playing import extend, resume, run
from fedgsp_runs.result import Run
from fedgsp_runs.sweeping import Sweep, sweep

__all__ = ["Run", "Sweep", "extend", "resume", "run", "sweep"]
