"""Which steps nodes take between a trained model and the model that leaves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedgsp.encoding import BFLOAT16
from fedgsp.messages import OutgoingStep
from fedgsp.outgoing import HEAD, ROUNDING

if TYPE_CHECKING:
    from fedgsp.settings.run import RunConfig
    from top_server.schemes import Scheme


def outgoing_steps(config: RunConfig, scheme: Scheme) -> tuple[OutgoingStep, ...]:
    """The steps of a run, in the order in which nodes take them."""
    steps = [OutgoingStep(HEAD)] if scheme.without_head else []
    if config.wire_dtype == BFLOAT16:
        steps.append(OutgoingStep(ROUNDING))
    return tuple(steps)
