"""Opens the audit log of a run, or goes on with that of a run that is resumed."""

import contextlib
import hashlib
from collections.abc import Iterator

from fedgsp.chained import BrokenError
from fedgsp.errors import ConfigError, DataError
from fedgsp.files import open_file, read_file
from fedgsp.signing import Signer
from top_server.audit import read
from top_server.findings import Findings
from top_server.record.audit import AuditLog
from top_server.record.directory import RunDirectory


@contextlib.contextmanager
def opened(
    directory: RunDirectory, run: str, signer: Signer | None, ca: bytes | None, resumed: bool
) -> Iterator[AuditLog]:
    """The log, with the line about the begin or the return of the run.

    Raises DataError if the lines of a resumed run do not hold, and ConfigError if they were signed and there is no
    key now.
    """
    found = Findings()
    try:
        with contextlib.suppress(FileNotFoundError), open_file(directory.audit) as file:
            found = read(file, ca, signer.certificate if signer is not None else None)
    except BrokenError as error:
        raise DataError(
            f"{directory.audit}, {error}",
            "restore the file from a copy; with certificates of a new CA, the top server has to keep its old key",
        ) from None
    except OSError as error:
        raise DataError(f"{directory.audit} cannot be read: {error.strerror}", "restore the file") from None
    else:
        if found.certificate is not None and signer is None:
            raise ConfigError("the audit log of this run is signed, and there is no key", "give the three --tls flags")
    with AuditLog(directory.audit, run, signer, found.rounds) as log:
        log.note(
            "resumed" if resumed else "began",
            run=run,
            caller="top-server" if signer is not None else "local user",
            certificate=signer.certificate.decode("ascii", "replace") if signer is not None else None,
            settings=hashlib.sha256(read_file(directory.config)).hexdigest(),
        )
        yield log
