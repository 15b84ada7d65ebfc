"""Runs a module of FedGSP as the main program: `python -P .../fedgsp/processes/run_module.py group_manager --name m0`.

`python -m` puts the working directory first on the import path. There a file of the user may have the name of a module
that FedGSP needs. With `-P`, the path starts with the standard library. This file adds the folder of FedGSP's packages
if it is not on the path, as in a checkout that is not installed. So a child runs the same code as its parent.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    root = str(Path(__file__).resolve().parents[2])
    if root not in sys.path:
        sys.path.insert(0, root)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
