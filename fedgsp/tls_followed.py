"""TLS files that are read again when they have changed, so that a renewed certificate needs no restart."""

import logging
import threading

from fedgsp.errors import ConfigError
from fedgsp.files import file_version
from fedgsp.tls import Tls, load

logger = logging.getLogger(__name__)


class Followed:
    """The credentials in three files, as they are now. Threads of gRPC ask, too.

    Files that are not good at the moment change nothing: certificate and key may be replaced one after the other.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._versions = self._look()
        self._lock = threading.Lock()

    def now(self) -> Tls:
        """The credentials to use for a new connection."""
        with self._lock:
            versions = self._look()
            if versions != self._versions:
                self._versions = versions
                self._read()
            return self._tls

    def _look(self) -> list[tuple[int, ...]]:
        files = self._tls.files
        return [file_version(path) for path in (files.ca, files.cert, files.key)]

    def _read(self) -> None:
        try:
            found = load(self._tls.files)
        except ConfigError as error:
            logger.warning("the certificate is not replaced: %s", error)
            return
        assert found is not None
        if found.identity != self._tls.identity:
            logger.warning("the certificate is not replaced: it is that of %s now", found.identity or "nobody")
            return
        self._tls = found
