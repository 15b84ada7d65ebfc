"""What importing the groupings brings in."""

from __future__ import annotations

import subprocess
import sys


def test_groupings_load_without_the_flow_solver() -> None:
    program = "import sys, top_server.grouping; sys.exit('ortools' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
