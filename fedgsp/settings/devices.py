"""How the setting `--device` is written."""

import re

from fedgsp.errors import ConfigError

DEVICES = "cpu, cuda, cuda:N, mps, or auto, which takes a GPU if there is one"
_DEVICE = re.compile(r"cpu|mps|(?:cuda|auto)(?::[0-9]{1,3})?")


def check_device(device: str) -> None:
    """Raise ConfigError unless `--device` is written as it must be."""
    if not _DEVICE.fullmatch(device):
        raise ConfigError(f"--device cannot be {device!r}", f"give {DEVICES}")
