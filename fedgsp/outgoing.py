"""Outgoing steps: what a node does to a trained model before the model leaves the node.

The table is shared by the top server, which puts the list of steps together, and by nodes, which import their code and
take the steps in the order of the list.
"""

from dataclasses import dataclass

from fedgsp.parts import Part, Parts

HEAD, ROUNDING = "head", "rounding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Part):
    """The declaration of an outgoing step.

    Its `code` is the place "package.module:function" of a function that `fedgsp_node.outgoing.base.Take` describes.
    Only nodes import it.
    """

    #: Whether the step may be taken twice for one training. False for a step that draws from a secret of its node: the
    #: mean of two draws would hide less than one draw. The node then publishes one result for each training, keeps it
    #: in its state directory, and hands it out again if the training is ordered again.
    repeatable: bool = True
    #: Whether the step needs the model that the training started from.
    needs_start: bool = False
    #: Whether the step leaves tensors out and changes no value.
    selects: bool = False
    #: Whether updates that clients reveal are computed before this step. Such a step protects nothing.
    after_reveal: bool = False
    #: Whether `--outgoing` may name the step. The top server adds the others where a scheme or a setting needs them.
    for_users: bool = True


OUTGOING: Parts[Step] = Parts(
    "outgoing",
    {
        HEAD: Step(
            help="the classifier head stays with the client",
            code="fedgsp_node.outgoing.head:take",
            selects=True,
            for_users=False,
        ),
        ROUNDING: Step(
            help="every float32 is rounded to the nearest bfloat16",
            code="fedgsp_node.outgoing.rounding:take",
            after_reveal=True,
            for_users=False,
        ),
    },
    Step,
    shown=lambda step: step.for_users,
)
