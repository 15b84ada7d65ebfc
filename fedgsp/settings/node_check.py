"""The settings of `fedgsp-node check`: those of a node, and how long its data may take."""

from dataclasses import dataclass

from fedgsp.settings.fields import setting
from fedgsp.settings.run import WORK, NodeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings(NodeSettings):
    """Every setting of a check. Those of a node mean the same as for `fedgsp-node start`."""

    data_timeout: float = setting(
        60.0,
        "how long loading the task, reading the data of all clients and trying the model may take together; what "
        "concerns the network ends within 10 s",
        above=0,
        metavar="SECONDS",
        panel=WORK,
    )
