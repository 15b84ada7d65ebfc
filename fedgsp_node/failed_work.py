"""The text of an error in the work of a client, as the node reports it to the group manager."""

import torch

from fedgsp_node.devices import memory_full
from fedgsp_node.users_code import where

#: Part of an error of torch -> what to do about it.
_REMEDIES = {
    "Expected more than 1 value per channel when training": (
        "batch norm takes no mean over a single sample: use nn.GroupNorm, give a larger --batch-size, or leave out"
        " clients with one training sample (--clients)"
    ),
}


def why_failed(error: BaseException, device: torch.device) -> str:
    """The text of an error with file and line in the user's code; with a remedy if it is known."""
    why = memory_full(error, device) or where(error)
    remedy = next((remedy for part, remedy in _REMEDIES.items() if part in str(error)), "")
    return f"{why}; {remedy}" if remedy else why
