"""What reading a damaged record raises, and the error that names the record."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedgsp.errors import DataError

#: What readers raise for lines whose fields have other types than they should, or figures that are too large.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


@contextmanager
def naming_damage(*run_dirs: Path) -> Iterator[None]:
    """Within, what the damaged record of one of these runs raises becomes a DataError that names them."""
    try:
        yield
    except MALFORMED as error:
        raise damaged(run_dirs, error) from None


def damaged(run_dirs: Sequence[Path], error: Exception) -> DataError:
    """The error of readers that got `error` from the record of one of these runs."""
    where = ", ".join(map(str, run_dirs))
    what = f"the record in {where}" if len(run_dirs) == 1 else f"one of the records in {where}"
    return DataError(f"{what} is damaged: {error!r}", "restore its files")
