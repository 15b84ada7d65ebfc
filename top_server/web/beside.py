"""The web page of a run that is played: a process of its own, which reads what the run records.

So the page costs the top server nothing, and no browser and no error of the page can hold up or end the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fedgsp.errors import ConfigError, PeerError, UserError, not_started
from fedgsp.files import appending
from fedgsp.processes.children import READY_TIMEOUT_S, tail
from fedgsp.processes.lifecycle import LIFELINE_VARIABLE, STOP_GRACE_S, python_module
from fedgsp.settings.flags import arguments_of
from fedgsp.settings.run import RunConfig
from fedgsp.settings.web import WebSettings
from top_server.record.directory import RunDirectory

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def shown(config: RunConfig, directory: RunDirectory) -> Iterator[None]:
    """Shows the run on its web page while the body lasts, if it is to have one; tells its address on stderr.

    Raises UserError if the page cannot be served. Browsers get the last events before it ends.
    """
    if config.web is None:
        yield
        return
    files = config.tls_files
    settings = WebSettings(listen=config.web, federation=config.federation, host=config.host)
    if files and config.federation is None:
        settings = dataclasses.replace(settings, tls_ca=files.ca, tls_cert=files.cert, tls_key=files.key)
    directory.logs.mkdir(exist_ok=True)
    log = directory.logs / "web.log"
    command = [*python_module("top_server"), "web", str(directory.path.absolute()), *arguments_of(settings)]
    try:
        with appending(log) as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, LIFELINE_VARIABLE: "stdin"},
                start_new_session=True,  # Ctrl-C reaches the run first, whose end the page then shows
            )
    except OSError as error:
        raise not_started("the web page", error) from None
    try:
        sys.stderr.write(f"the web page of this run: {_address(process, log)}\n")
        yield
    finally:
        if (code := process.poll()) is not None and sys.exc_info()[0] is None:
            logger.warning("the web page ended before the run, with exit code %d; its log ends: %s", code, tail(log))
        _end(process)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.stdout is not None
    line, deadline = b"", time.monotonic() + READY_TIMEOUT_S
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        more = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not more:
            break
        line += more
    if line.endswith(b"\n"):
        return line.decode(errors="replace").strip()
    code = process.poll() if line else process.wait(STOP_GRACE_S)
    kind: type[UserError] = ConfigError if code == ConfigError.exit_code else PeerError
    raise kind("the web page did not start", f"it said: {tail(log, 1)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.close()  # its lifeline
    try:
        process.wait(STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
