"""Refuses values of the user that cannot be used."""

from fedgsp.errors import TaskError, UserError


def require(fits: object, what: str, remedy: str, error: type[UserError] = TaskError) -> None:
    """Raises `error` with this text and remedy unless the condition `fits` is true."""
    if not fits:
        raise error(what, remedy)
