"""Names for what an order can ask of a client, and for what a client can answer."""

from __future__ import annotations

from fedgsp.messages.order import (
    Cancel,
    Describe,
    Described,
    Discriminate,
    Discriminated,
    Evaluate,
    Evaluated,
    Initialise,
    Recall,
    Release,
    SendUp,
    Train,
    Trained,
)

#: What `Order.work` holds.
Work = Train | Evaluate | Describe | Discriminate | Initialise | SendUp | Release | Recall | Cancel
#: What `MemberDone.result` holds.
Result = Trained | Evaluated | Described | Discriminated
