"""TLS files that are read again when they have changed, so that a renewed certificate needs no restart."""

import logging
import threading
import time
from collections.abc import Callable

from fedgsp.errors import ConfigError
from fedgsp.security.tls import Tls, load

logger = logging.getLogger(__name__)

#: How long files that cannot be used are left alone, in seconds. They may become usable without a change: a
#: certificate that is not valid yet, or a key whose access rights are corrected.
AGAIN_S = 60.0


class Followed:
    """The credentials in three files, as they are now. Threads of gRPC ask, too.

    Files that cannot be used change nothing: certificate and key may be replaced one after the other.
    """

    def __init__(self, tls: Tls, clock: Callable[[], float] = time.monotonic) -> None:
        self._tls = tls
        self._taken = tls.versions or tls.files.versions()
        self._clock = clock
        self._refused: tuple[tuple[int, ...], ...] = ()
        self._again_at = 0.0
        self._lock = threading.Lock()

    def now(self) -> Tls:
        """The credentials to use for a new connection."""
        with self._lock:
            versions = self._tls.files.versions()
            if versions != self._taken and (versions != self._refused or self._clock() >= self._again_at):
                self._read(versions)
            return self._tls

    def _read(self, versions: tuple[tuple[int, ...], ...]) -> None:
        """Reads the files, which have these versions or newer ones. The log has one line for each version."""
        try:
            found = load(self._tls.files)
            assert found is not None
            if found.identity != self._tls.identity:
                raise ConfigError(f"the new file names {found.identity or 'nobody'}", "put the former file back")
        except ConfigError as error:
            if versions != self._refused:
                logger.warning("the certificate is not replaced: %s", error)
            self._refused, self._again_at = versions, self._clock() + AGAIN_S
            return
        self._tls, self._taken = found, found.versions
