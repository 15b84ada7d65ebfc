"""Runs one of our modules as the main program: `python -P .../fedgsp/run_module.py group_manager --name m0`.

`python -m` puts the working directory first on the import path, where a file of the user may have the name of one of
our modules or libraries. With `-P` the path starts with the standard library. The folder of our packages is added here
if it is not on the path, as in a checkout that is not installed: a child then runs the same code as its parent.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    root = str(Path(__file__).resolve().parents[1])
    if root not in sys.path:
        sys.path.insert(0, root)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
