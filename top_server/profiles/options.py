"""The options of the profiles: what clients reveal before they are grouped.

The options stand apart from the code of the profiles, so that `--help` can list them without importing that code.
"""

from dataclasses import dataclass

from fedgsp.discriminators import ESTIMATES
from fedgsp.errors import ConfigError
from fedgsp.settings.fields import setting
from fedgsp.settings.run import RunConfig
from fedgsp.tensors.updates import SKETCH_BYTES
from top_server.profiles.distance_file import Recorded
from top_server.reveals.layer_scores import READINGS


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options of profile `model-distances`."""

    models: int = setting(4, "number of clusters, each with a model", least=1)


@dataclass(frozen=True, slots=True)
class LossOptions(ModelOptions):
    """Options of profile `losses`."""

    restart: int = setting(0, "1, 2, ...: other models to begin with", least=0)


@dataclass(frozen=True, slots=True)
class PriorOptions:
    """Options of the profiles with a model that every client trains alone before the first round."""

    prior_epochs: int | None = setting(
        None, "epochs of this training; by default those of the whole run together", least=1
    )

    def epochs(self, config: RunConfig) -> int:
        """The epochs of this training in a run with these settings."""
        return self.prior_epochs or config.rounds * config.local_epochs


#: Bytes of a sketch, if no option says how many.
DEFAULT_SKETCH = 16384


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """Options of profile `updates`."""

    similarity: str = setting(
        "exact",
        "what updates are compared by: all of them, one layer, or a sketch; for all but a sketch, nodes need "
        "--allow reveal=exact",
        choices=("exact", "layer", "sketch"),
    )
    similarity_of: str = setting(
        "all", "the whole update, or only the part outside the classifier head", choices=("all", "shared")
    )
    layer_score: str | None = setting(
        None, "with similarity=layer, how the layer is chosen; robust by default", choices=tuple(READINGS)
    )
    sketch_bytes: int | None = setting(
        None, "with similarity=sketch, bytes of a sketch; 16384 by default", choices=SKETCH_BYTES
    )
    newcomer_start: str = setting(
        "mean",
        "where clients that join later start: the mean of the others' models, or the initial model",
        choices=("mean", "initial"),
    )

    def __post_init__(self) -> None:
        for name, value, needed in (
            ("layer_score", self.layer_score, "layer"),
            ("sketch_bytes", self.sketch_bytes, "sketch"),
        ):
            if value is not None and self.similarity != needed:
                what = f"profile updates: option {name} has no effect where similarity is {self.similarity}"
                raise ConfigError(what, f"give --profile-option similarity={needed} too")

    @property
    def sketch(self) -> int:
        """Bytes of a sketch."""
        return self.sketch_bytes or DEFAULT_SKETCH

    @property
    def first_view(self) -> str:
        """What clients reveal of their updates in the first round, as `Reveal.view` names it."""
        return f"sketch:{self.sketch}" if self.similarity == "sketch" else "exact"


@dataclass(frozen=True, slots=True)
class DistanceOptions:
    """Options of profile `distances`; the defaults are the paper's, but for `estimate` (decision 9)."""

    distance: str = setting(
        "pairwise", "a network per pair of clients, or one network for all", choices=("pairwise", "shared")
    )
    feature_scale: float = setting(
        1.0, "factor on inputs beside labels: the smaller, the more labels count", least=1e-6
    )
    estimate: str = setting(
        "cross-fitted",
        "how judgements become distances: the last one (the paper), the largest one (its authors' code), or the mean"
        " after the best one, over two draws of training samples, minus the part that may be chance (decision 9)",
        choices=tuple(ESTIMATES),
    )
    exchanges: int = setting(2000, "most exchanges of weights", least=1)
    local_steps: int = setting(1, "steps of SGD between two exchanges", least=1)
    discriminator_batch: int = setting(32, "batch size of these networks", least=1)
    discriminator_rate: float = setting(0.01, "learning rate of these networks", least=1e-9)
    judge_every: int = setting(10, "exchanges between two judgements", least=1)
    patience: int = setting(10, "judgements without improvement before a pair stops", least=1)
    distances: Recorded | None = setting(None, "distances.json of another run, whose distances are used again")

    @property
    def shared(self) -> bool:
        """Whether there is one network for all clients."""
        return self.distance == "shared"
