"""The text of an error in the work of a client, as the node reports it to the group manager."""

import torch

from fedgsp_node.devices import memory_full
from fedgsp_node.remedies import remedy_of
from fedgsp_node.users_code import where


def why_failed(error: BaseException, device: torch.device) -> str:
    """The text of an error with file and line in the user's code; with a remedy if it is known."""
    why = memory_full(error, device) or where(error)
    remedy = remedy_of(error)
    return f"{why}; {remedy}" if remedy else why
