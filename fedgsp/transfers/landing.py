"""Where an upload goes that is used while it comes, and is never here as a whole."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedgsp.tensors.weights import Weights


class Landing(Protocol):
    """Takes the bytes of one model."""

    #: Tensors and digest of the model, once it came well. Its bytes are gone.
    came: Weights | None

    def room(self, size: int) -> NDArray[np.uint8]:
        """Memory for the model, shape (size,); raises WeightsError if it cannot be the model that is expected."""

    async def filled_to(self, end: int) -> None:
        """The first `end` bytes came; the next ones come when this returns. Raises WeightsError to end the upload."""
