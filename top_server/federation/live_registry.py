"""The registry of a federation as it is at each moment, for processes that follow its file."""

import logging

from fedgsp.errors import UserError
from fedgsp.files import file_version
from top_server.federation.folder import Folder
from top_server.federation.registry import Registry

logger = logging.getLogger(__name__)


class LiveRegistry:
    """Reads the registry again when its file has changed. While it is damaged, the last good one counts."""

    def __init__(self, folder: Folder) -> None:
        """Raises DataError if the registry is damaged already."""
        self._folder = folder
        self._version = self._damaged = file_version(folder.registry_file)
        self._registry = folder.registry()

    def now(self) -> Registry:
        """The registry."""
        version = file_version(self._folder.registry_file)
        if version != self._version:  # which is that of the last good one: damage may be repaired without a trace
            try:
                self._registry, self._version = self._folder.registry(), version
            except UserError as error:
                if version != self._damaged:
                    logger.error("the registry is not read again: %s", error)
                self._damaged = version
        return self._registry
