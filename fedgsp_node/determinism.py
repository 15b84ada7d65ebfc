"""Deterministic algorithms of torch on a GPU: asked for, and given up when a model needs an operation without one."""

import functools
import logging
import os
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch

logger = logging.getLogger(__name__)


class OnDevice(Protocol):
    """Works on a device."""

    device: torch.device


W = TypeVar("W", bound=OnDevice)
P = ParamSpec("P")
T = TypeVar("T")

#: In the text of each error by which torch refuses an operation that has no deterministic algorithm, after its name.
_REFUSED = ", but you set 'torch.use_deterministic_algorithms(True)'"
#: Whether it was `ask` that lets torch refuse operations; a task of a user may want that, too.
_asked = False


def ask() -> None:
    """Lets torch take deterministic algorithms, and refuse an operation that has none; called before a GPU is used.

    If torch only warned of such operations, it would also take attention's faster algorithms, which are not
    deterministic.
    """
    global _asked
    _asked = True
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def where_possible(work: Callable[Concatenate[W, P], T]) -> Callable[Concatenate[W, P], T]:
    """A method that begins again, with any algorithms, when torch refuses an operation of it.

    From then on, all work of this process may use any algorithms, and the log says so. Only work on a GPU begins
    again: it has changed nothing when it raises, while training on the CPU may change a model in place.
    """

    @functools.wraps(work)
    def worked(self: W, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(self, *args, **kwargs)
        except Exception as error:
            why = refusal(error)
            if why is None or self.device.type == "cpu":
                raise
        torch.use_deterministic_algorithms(True, warn_only=True)
        logger.warning(
            "torch cannot compute an operation of this model deterministically on a GPU, so the last bits of results"
            " may differ from one time to the next: %s",
            why,
        )
        return work(self, *args, **kwargs)

    return worked


def refusal(error: BaseException) -> str | None:
    """What torch says of the operation that it refused, if that is the cause of an error; otherwise None."""
    if not _asked or torch.is_deterministic_algorithms_warn_only_enabled():
        return None
    texts = [str(one) for one in _causes(error)]
    return next((text.partition(_REFUSED)[0] for text in reversed(texts) if _REFUSED in text), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
