"""`python -m top_server`, without the working directory, which Python puts first on the import path."""

import os
import sys

# Not a function: no module of ours can be imported before. A checkout is its own working directory.
if not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(os.path.abspath(__file__))):
    del sys.path[0]

from top_server.cli import main

main()
