"""Sends a run to an MLflow tracking server, with MLflow's own client."""

import logging
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from top_server.tracking import MlflowOptions
from top_server.tracking.base import About, Outcome, Points, Tracking

#: How MLflow's client waits for a server, unless the environment says otherwise: with its own values, a request to a
#: server that is away takes minutes. The client also reports its use to its makers unless it is told not to.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout is that of the run
}
#: What a server takes in one request.
_MOST_METRICS, _MOST_PARAMETERS = 1000, 100
_NOT_IN_NAMES = re.compile(r"[^\w./ :-]", re.ASCII)
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
#: The metric that comes last of a round: it says which round the server has.
_ROUND = "round"


class Mlflow(Tracking):
    """A run on a tracking server, found again by the id of the run when it is resumed or exported."""

    def __init__(self, options: MlflowOptions) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # the tracker warns by itself, once
        from mlflow.tracking import MlflowClient  # after the environment is set

        self._options = options
        self._client: Any = MlflowClient(tracking_uri=options.to)
        self._id = ""

    def begin(self, about: About) -> int:
        """Makes the run, or finds it."""
        client, experiment = self._client, self._experiment()
        found = client.search_runs([experiment], f"tags.`fedgsp.run` = '{about.run}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            client.update_run(self._id, status="RUNNING")
        else:
            tags = {f"fedgsp.{name}": text for name, text in {"run": about.run, **about.tags}.items()}
            if "commit" in about.tags:
                tags["mlflow.source.git.commit"] = about.tags["commit"].removesuffix("-dirty")
            start = _milliseconds(about.began)
            self._id = client.create_run(experiment, start, tags, about.directory.name).info.run_id
        data = client.get_run(self._id).data
        self._send_parameters({_name(name): text for name, text in about.parameters.items()}, data.params)
        return int(data.metrics.get(_ROUND, 0))

    def add(self, points: Points) -> None:
        """Sends the figures of a round."""
        from mlflow.entities import Metric

        time = _milliseconds(points.time)
        values = {**points.values, _ROUND: float(points.round)}
        metrics = [Metric(_name(name), value, time, points.round) for name, value in values.items()]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[first : first + _MOST_METRICS])

    def end(self, outcome: Outcome) -> None:
        """Sends how the run ended."""
        self._client.set_tag(self._id, "fedgsp.outcome", outcome.kind)
        self._client.set_tag(self._id, "fedgsp.reason", outcome.reason)
        if outcome.kind in _STATUS:
            self._client.set_terminated(self._id, _STATUS[outcome.kind], _milliseconds(outcome.time))

    def _send_parameters(self, wanted: Mapping[str, str], has: Mapping[str, str]) -> None:
        """Sends the parameters that the run lacks. A server refuses to change one."""
        from mlflow.entities import Param

        missing = [Param(name, text) for name, text in wanted.items() if name not in has]
        for first in range(0, len(missing), _MOST_PARAMETERS):
            self._client.log_batch(self._id, params=missing[first : first + _MOST_PARAMETERS])

    def _experiment(self) -> str:
        name = self._options.experiment
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))


def _name(text: str) -> str:
    """A name as MLflow takes it."""
    return _NOT_IN_NAMES.sub("_", text)[:250]


def _milliseconds(moment: datetime | None) -> int:
    return int((moment or datetime.now(UTC)).timestamp() * 1000)
