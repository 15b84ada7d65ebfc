"""Deterministic algorithms of torch on a GPU: asked for, and given up when a model needs an operation without one."""

import functools
import logging
import os
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import torch

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: In the text of each error by which torch refuses an operation that has no deterministic algorithm.
_REFUSED = "use_deterministic_algorithms"
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


def where_possible(work: Callable[P, T]) -> Callable[P, T]:
    """Work that begins again, with any algorithms, when torch refuses an operation of it on a GPU.

    From then on, all work of this process may use any algorithms, and the log says so. Work on a GPU that raises must
    have changed nothing.
    """

    @functools.wraps(work)
    def worked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except Exception as error:
            refusal = next((str(one) for one in _causes(error) if _REFUSED in str(one)), None)
            if refusal is None or not _strict():
                raise
        torch.use_deterministic_algorithms(True, warn_only=True)
        logger.warning(
            "this model needs an operation that torch cannot compute deterministically on a GPU, so the last bits of"
            " its results may differ from one time to the next: %s",
            refusal.partition(". ")[0],
        )
        return work(*args, **kwargs)

    return worked


def _strict() -> bool:
    return _asked and not torch.is_deterministic_algorithms_warn_only_enabled()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
