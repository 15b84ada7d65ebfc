"""Which process serves the models of a source."""

from collections.abc import Callable

from fedgsp.identity import TOP_SERVER, Identity, manager, node
from fedgsp.messages import SourceKind

#: Kind of a source -> the process that serves it, by its name. Other sources are on the reading node itself.
HOLDERS: dict[SourceKind, Callable[[str], Identity]] = {
    SourceKind.NODE: node,
    SourceKind.MANAGER: manager,
    SourceKind.TOP_SERVER: lambda _: TOP_SERVER,
}
