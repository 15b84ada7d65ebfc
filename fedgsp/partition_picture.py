"""A picture of a partition: how many samples of which class each client has."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from fedgsp.require import require

#: More classes than this have one colour scale in place of a legend.
_MOST_NAMED = 20


def draw_partition(labels: Any, parts: Sequence[NDArray[np.integer[Any]]], path: str | Path) -> None:
    """Writes a picture (PNG, or what the ending of `path` says): a bar per client, with a colour per class.

    `labels` has shape (n,), `parts` the numbers of the samples of each client. Raises TaskError for other labels, or
    for a number that is no sample, and ConfigError without matplotlib.
    """
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise ConfigError("drawing needs matplotlib", "pip install 'matplotlib>=3.9'") from None

    found = np.asarray(labels)
    require(found.ndim == 1, f"labels have shape {found.shape}", "give one label for each sample, shape (n,)")
    inside = all(not len(part) or (np.min(part) >= 0 and np.max(part) < len(found)) for part in parts)
    require(inside, "a part of the partition names a sample that does not exist", "draw the labels that were divided")
    classes = np.unique(found)
    counts = np.array([[np.sum(found[part] == one) for one in classes] for part in parts])
    figure = Figure(figsize=(max(6.0, 0.3 * len(parts)), 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    colours = mpl.colormaps["tab20" if len(classes) <= _MOST_NAMED else "turbo"]
    below = np.zeros(len(parts))
    for place, one in enumerate(classes):
        shade = colours(place) if len(classes) <= _MOST_NAMED else colours(place / (len(classes) - 1))
        axes.bar(range(len(parts)), counts[:, place], bottom=below, color=shade, label=str(one), width=0.9)
        below += counts[:, place]
    axes.set(xlabel="client", ylabel="samples")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(classes) <= _MOST_NAMED:
        figure.legend(title="class", loc="outside right upper", fontsize=8)
    else:
        scale = mpl.cm.ScalarMappable(mpl.colors.Normalize(0, len(classes) - 1), colours)
        figure.colorbar(scale, ax=axes, label="class, by its rank")
    figure.savefig(path, dpi=120)
