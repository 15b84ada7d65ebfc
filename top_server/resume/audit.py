"""Opens the audit log of a run, or goes on with that of a run that is resumed."""

import contextlib
from collections.abc import Iterator

from fedgsp.errors import ConfigError, DataError, Refusal
from fedgsp.files import open_file
from fedgsp.security.chained import BrokenError
from fedgsp.security.signing import Signer
from top_server.audit import read
from top_server.findings import Findings
from top_server.record.audit import AuditLog
from top_server.record.directory import RunDirectory, digest_of_config
from top_server.recorded import rounds_in_words


@contextlib.contextmanager
def opened(
    directory: RunDirectory,
    run: str,
    signer: Signer | None,
    ca: bytes | None,
    resumed: bool,
    done: int = 0,
    extends: bool = False,
) -> Iterator[AuditLog]:
    """The log, with the line about the begin or the return of the run.

    `done` is the number of rounds from whose end the run goes on; with `extends` it was finished then.

    Raises DataError if the lines of a resumed run do not hold, or if lines are missing that its record has, and
    ConfigError if they were signed and there is no key now.
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
    if resumed:
        DataError.refuse(_lacks(found, directory, run, done, extends))
    with AuditLog(directory.audit, run, signer, found.rounds, last_serial=found.serial) as log:
        log.note(
            "resumed" if resumed else "began",
            run=run,
            caller="top-server" if signer is not None else "local user",
            certificate=signer.certificate.decode("ascii", "replace") if signer is not None else None,
            settings=digest_of_config(directory),
        )
        yield log


def _lacks(found: Findings, directory: RunDirectory, run: str, done: int, extends: bool) -> Iterator[Refusal]:
    """What is missing in a log, so that it could never be verified if the run went on.

    A state is saved after the seal of its round. Lines after this seal may be missing, or be more than the record has.
    """
    log, remedy = directory.audit, "restore it from a copy, or start the run again"
    yield not found.lines and not directory.audit.exists(), f"{log} is missing", remedy
    yield not found.lines, f"{log} is empty", remedy
    yield found.resumed, f"{log} begins with a resumed run: its beginning is lost", remedy
    yield found.run != run, f"{log} is of run {found.run!r}, and events.jsonl of {run!r}", remedy
    unsealed = found.unsealed(range(1, done + 1))
    yield unsealed, f"{log} lacks {rounds_in_words(unsealed)}, which history.jsonl has", remedy
    yield extends and not found.ended, f"{log} lacks the end of the run, which events.jsonl has", remedy
