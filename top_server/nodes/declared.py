"""What tasks declare when their nodes join."""

from collections.abc import Iterable

from fedgsp.messages import Hello
from fedgsp.scoring import ACCURACY, Scoring


def scoring_of(hello: Hello | None) -> Scoring:
    """How the task of a node combines its metrics, and what rates a model; by default accuracy does."""
    return Scoring(hello.score or ACCURACY, hello.combine) if hello is not None else Scoring()


def lacked_by_all(hellos: Iterable[Hello]) -> list[str]:
    """What the tasks of all these nodes lack, such as class counts."""
    lacking = [set(hello.lacks) for hello in hellos]
    return sorted(set.intersection(*lacking)) if lacking else []


def names_of(hellos: Iterable[Hello]) -> dict[int, str]:
    """Client -> what people call it, by ascending client; only clients that have a name."""
    named = {hosted.client: hosted.name for hello in hellos for hosted in hello.clients if hosted.name}
    return dict(sorted(named.items()))
