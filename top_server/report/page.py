"""Writes the report: the facts and charts of runs in one HTML file, which fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedgsp.errors import ConfigError, remedy_of
from top_server.pictures.files import write_out
from top_server.record.damage import naming_damage
from top_server.report.charts import Chart, charts_of, comparing
from top_server.report.comparison import rows_of, variants
from top_server.report.facts import CLIENT_HEADS, LAST_TROUBLES, NODE_HEADS, facts

_TEMPLATE = "report.html.jinja"


def write(run_dirs: Sequence[Path], out: Path, pictures: Path | None = None) -> None:
    """Writes the report of runs to the file `out`, and its charts also into the folder `pictures` if one is given.

    Raises UserError if a directory holds no run, if the extra `plots` is missing, or if a file cannot be written.
    """
    runs = [facts(run_dir) for run_dir in run_dirs]
    charts = [list(charts_of(run_dir, f"run-{number}")) for number, run_dir in enumerate(run_dirs, start=1)]
    found = variants(runs)
    with naming_damage(*run_dirs):  # each run can be told, and several not together
        compared = list(comparing(found)) if len(runs) > 1 and any(run.rows for run in runs) else []
        rows = rows_of(found) if len(runs) > 1 else []
    environment = Environment(
        loader=PackageLoader("top_server.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    text = environment.get_template(_TEMPLATE).render(
        runs=[{"facts": run, "charts": own} for run, own in zip(runs, charts, strict=True)],
        variants=rows,
        compared=compared,
        last_troubles=LAST_TROUBLES,
        client_heads=CLIENT_HEADS,
        node_heads=NODE_HEADS,
    )
    try:
        write_out(out, text.encode(), run_dirs)
        if pictures is not None:
            _write_pictures([chart for own in (*charts, compared) for chart in own], pictures)
    except OSError as error:
        raise ConfigError(f"{error.filename or out} cannot be written: {error.strerror}", remedy_of(error)) from None


def _write_pictures(charts: Sequence[Chart], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for chart in charts:
        write_out(folder / f"{chart.name}{chart.ending}", chart.image)
