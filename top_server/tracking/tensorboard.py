"""Writes a run as an event file of TensorBoard, with TensorBoard's own writer of records, and without torch."""

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from fedgsp.errors import ConfigError
from fedgsp.files import appending
from top_server.tracking import TensorBoardOptions
from top_server.tracking.base import About, Outcome, Points, Tracking

#: The ending of the files that this tracker writes; it replaces no others.
_ENDING = ".fedgsp"
_STATUS = {"finished": Status.STATUS_SUCCESS, "failed": Status.STATUS_FAILURE}


class TensorBoard(Tracking):
    """An event file in a folder. A run that is resumed, or exported again, gets a new file in place of the old one."""

    def __init__(self, options: TensorBoardOptions) -> None:
        self._to = options.to
        self._path = Path()

    def begin(self, about: About) -> int:
        """Begins a file, which will have all rounds; writes the settings into it."""
        folder = self._folder(about)
        # A run directory may come from somebody else, and a link in it would lead to files of this user.
        if self._to is None and folder.is_symlink():
            raise ConfigError(f"{folder} is a link", "remove it, or write elsewhere with the option to=FOLDER")
        folder.mkdir(parents=True, exist_ok=True)
        for old in _files(folder):
            if _is_of(old, about.run):
                old.unlink()
        began = about.began.timestamp()
        self._path = folder / f"events.out.tfevents.{int(began):010d}.{about.run}{_ENDING}"
        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        start = SessionStartInfo(group_name=about.directory.name, start_time_secs=began)
        for name, text in about.parameters.items():
            start.hparams[name].string_value = text
        self._write(
            Event(wall_time=began, file_version="brain.Event:2"),
            # A TensorBoard that is open forgets what it has read of the file before.
            Event(wall_time=began, step=0, session_log=SessionLog(status=SessionLog.START)),
            Event(
                wall_time=began,
                summary=Summary(
                    value=[
                        _text("run", _table({"run": about.run, **about.tags})),
                        _text("settings", _table(about.parameters)),
                        _hparams(hparams.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start)),
                    ]
                ),
            ),
        )
        return 0

    def _folder(self, about: About) -> Path:
        """The folder of the run; directories of several runs may have the same name."""
        if self._to is None:
            return about.directory / "tensorboard"
        folder = self._to / about.directory.name
        if all(_is_of(file, about.run) for file in _files(folder)):
            return folder
        return folder.with_name(f"{folder.name}-{about.run}")

    def add(self, points: Points) -> None:
        """Appends the figures of a round, as one event."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in points.values.items()]
        self._write(Event(wall_time=points.time.timestamp(), step=points.round, summary=Summary(value=values)))

    def end(self, outcome: Outcome) -> None:
        """Appends how the run ended."""
        time = outcome.time.timestamp() if outcome.time else 0.0
        end = SessionEndInfo(status=_STATUS.get(outcome.kind, Status.STATUS_UNKNOWN), end_time_secs=time)
        told = f"{outcome.kind}: {outcome.reason}" if outcome.reason else outcome.kind
        values = [
            _text("outcome", told),
            _hparams(hparams.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end)),
        ]
        self._write(Event(wall_time=time, summary=Summary(value=values)))

    def _write(self, *events: Event) -> None:
        """Appends events: all of them, or none if the disk is full."""
        buffer = io.BytesIO()
        for event in events:
            RecordWriter(buffer).write(event.SerializeToString())
        with appending(self._path) as file:
            size = file.tell()
            rest = buffer.getvalue()
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(size)
                raise


def _files(folder: Path) -> list[Path]:
    return list(folder.glob(f"*tfevents*{_ENDING}"))


def _is_of(file: Path, run: str) -> bool:
    return file.name.endswith(f".{run}{_ENDING}")


def _text(tag: str, text: str) -> Summary.Value:
    return Summary.Value(tag=tag, metadata=create_summary_metadata(tag, ""), tensor=make_tensor_proto([text]))


def _hparams(tag: str, data: HParamsPluginData) -> Summary.Value:
    return Summary.Value(tag=tag, metadata=hparams.create_summary_metadata(data), tensor=hparams.NULL_TENSOR)


def _table(rows: Mapping[str, str]) -> str:
    """The rows as a table in Markdown; what would be markup in a value is shown as it is."""
    lines = [f"| {_plain(name)} | {_plain(text)} |" for name, text in rows.items()]
    return "\n".join(["| name | value |", "|---|---|", *lines])


def _plain(text: str) -> str:
    return "".join(f"&#{ord(one)};" if one in "|\\`*_{}[]<>()#+!&\n" else one for one in text)
