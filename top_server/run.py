"""The frozen context of a run: its settings, and the objects of the top server that all rounds use."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from fedgsp.messages import TensorSpec
from fedgsp.security.tickets import Door
from fedgsp.settings.run import RunConfig
from fedgsp.tensors.encoding import BFLOAT16, rounded
from fedgsp.tensors.weights import Weights, without_head
from top_server.grouping import GroupingRequest, Plan
from top_server.managers.pool import ManagerPool
from top_server.models import Held, Holdings, Models
from top_server.nodes.membership import Membership
from top_server.record.audit import NO_AUDIT, Audit
from top_server.record.journal import Journal
from top_server.schemes import Scheme
from top_server.turns import Turns

#: Answers a request with a plan, in this process or by asking a grouping service.
Assign = Callable[[GroupingRequest], Awaitable[Plan]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The constant facts of a run, and the objects of the top server that all rounds use.

    No field is ever replaced. What changes from round to round is in `Progress`, and inside some of the objects (such
    as `membership` and `models`).
    """

    run_id: str
    config: RunConfig
    scheme: Scheme
    #: Where nodes and managers fetch the models of this process.
    address: str
    membership: Membership
    managers: ManagerPool
    assign: Assign
    models: Models
    #: Checks the tickets of those who fetch models of this process; it follows the rounds.
    door: Door
    journal: Journal
    audit: Audit = NO_AUDIT
    #: Why a certificate (PEM) was not one of the CA of this run at any time since the start; empty if it was.
    why_not_trusted: Callable[[bytes], str] = lambda _: "this run has no CA"
    #: (node, fingerprint) of the renewed certificates that the audit log has.
    renewed: set[tuple[str, str]] = field(default_factory=set)
    #: With `--local-run`: the score that each client reached when all clients trained alone.
    alone: Mapping[int, float] | None = None
    #: With `--balance time`: how long the clients took.
    turns: Turns | None = None
    #: How often the run was resumed.
    times: int = 0

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors of the models that travel in this run."""
        tensors = self.membership.tensors
        return without_head(tensors) if self.scheme.without_head else tensors

    def handed_on(self, weights: Weights) -> Weights:
        """A model made in this process in the form in which models travel: rounded if `--wire-dtype` says so."""
        return rounded(weights) if self.config.wire_dtype == BFLOAT16 else weights

    def initial_id(self, slot: str) -> str:
        """The id of the model that a slot has before anybody trained it."""
        return f"{self.run_id}/{slot}"

    def holdings(self, local_models: Mapping[int, Held]) -> Holdings:
        """The models and the present clients at this moment."""
        samples = {client: hosted.train_samples for client, hosted in self.membership.clients.items()}
        return Holdings(self.models.slots, samples, dict(local_models), self.membership.told_samples.training)
