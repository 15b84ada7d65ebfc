"""A top server whose clock was ahead, and is set right while a run goes on."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509

from fedgsp.security import certificates
from tests.support.federations import federated
from tests.support.fuzzing import until
from top_server.federation import authority, folder


async def test_the_certificate_of_the_top_server_is_made_anew_when_it_is_not_good_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federated(tmp_path / "federation", monkeypatch):
        (file,) = (path for path in (tmp_path / "federation").glob("*.pem") if path.name != "ca.pem")
        first = file.read_bytes()
        earlier = dt.datetime.now(dt.UTC) - certificates.BACKDATED - dt.timedelta(hours=1)
        for module in (certificates, folder, authority):
            monkeypatch.setattr(module, "now", lambda: earlier)
        await until(lambda: file.read_bytes() != first)
    found = x509.load_pem_x509_certificate(file.read_bytes())
    assert found.not_valid_before_utc <= earlier
