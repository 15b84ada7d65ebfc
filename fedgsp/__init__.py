"""What two or more processes must agree on, and the user's surface (Task)."""

import os

# Before gRPC is imported anywhere: what it writes to stderr by itself, we say in our own words, or in the log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from fedgsp.histograms import histogram, quantile_edges
from fedgsp.partition_picture import draw_partition
from fedgsp.partitions import partition
from fedgsp.report import Report
from fedgsp.task import ClientData, Split, Task
from fedgsp.task_check import check

__all__ = [
    "ClientData",
    "Report",
    "Split",
    "Task",
    "check",
    "draw_partition",
    "histogram",
    "partition",
    "quantile_edges",
]
__version__ = "0.1.0"
