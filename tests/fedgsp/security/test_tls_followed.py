"""TLS files that change while a process runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedgsp.connections.channels import Channels, start_server
from fedgsp.errors import PeerError
from fedgsp.identity import TOP_SERVER, node
from fedgsp.security import tls_probe
from fedgsp.security.tls import Tls, TlsFiles, load
from fedgsp.security.tls_followed import AGAIN_S, Followed
from tests.support.callers import OPEN
from tests.support.certificates import Authority


def put(files: TlsFiles, other: TlsFiles, *names: str) -> None:
    """Puts the files of another certificate in place, as a renewal does."""
    for name in names:
        fresh = getattr(files, name).with_suffix(".fresh")
        fresh.write_bytes(getattr(other, name).read_bytes())
        fresh.chmod(0o600)
        os.replace(fresh, getattr(files, name))


def loaded(files: TlsFiles) -> Tls:
    found = load(files)
    assert found is not None
    return found


def test_new_files_count_once_they_fit_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    files, other = authority.issue("own"), authority.issue("other")
    followed = Followed(loaded(files))
    first = followed.now()
    put(files, other, "cert")  # its key comes later
    assert followed.now() is first
    assert "the certificate is not replaced: --tls-key" in caplog.text
    put(files, other, "key")
    assert followed.now().cert == other.cert.read_bytes() != first.cert
    files.cert.unlink()
    assert followed.now().cert == other.cert.read_bytes()


def test_files_that_become_good_without_a_change_are_taken_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A certificate may be put in place before it is valid, and a key with access rights that are corrected later."""
    authority, now = Authority(tmp_path), [0.0]
    files, other = authority.issue("own"), authority.issue("other")
    followed = Followed(loaded(files), lambda: now[0])
    put(files, other, "cert", "key")
    files.key.chmod(0o640)  # changes no content, and no time of the content
    assert followed.now().cert != other.cert.read_bytes()
    files.key.chmod(0o600)
    assert followed.now().cert != other.cert.read_bytes()  # so handshakes do not read the files again and again
    now[0] += AGAIN_S
    assert followed.now().cert == other.cert.read_bytes()
    assert caplog.text.count("the certificate is not replaced") == 1


def test_files_that_change_after_they_were_loaded_are_read_again(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files, other = authority.issue("own"), authority.issue("other")
    before = loaded(files)
    put(files, other, "cert", "key")
    assert Followed(before).now().cert == other.cert.read_bytes()


async def test_the_old_pair_dials_while_only_one_of_the_files_is_replaced(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files, other = authority.issue("own", identity=node("n0")), authority.issue("other", identity=node("n0"))
    server, address = await start_server("127.0.0.1:0", [], OPEN, loaded(authority.issue("top")))
    tls = loaded(files)
    put(files, other, "cert")
    async with Channels(tls) as channels:
        await channels.to(address, TOP_SERVER)
    tls.check_covers("127.0.0.1", "where it is")
    await server.stop(None)


@pytest.mark.parametrize("identity", [None, node("n1")])
def test_a_process_does_not_become_another(tmp_path: Path, identity: object) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("own", identity=node("n0"))
    followed = Followed(loaded(files))
    put(files, authority.issue("other", identity=identity), "cert", "key")  # type: ignore[arg-type]
    assert followed.now().identity == node("n0")


def test_a_certificate_and_its_key_in_one_file_are_kept_apart_in_memory(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("own")
    both = tmp_path / "both.pem"
    both.write_bytes(files.cert.read_bytes() + files.key.read_bytes())
    both.chmod(0o600)
    tls = loaded(TlsFiles(files.ca, both, both))
    assert tls.cert == files.cert.read_bytes()
    assert "PRIVATE" not in repr(tls)


async def test_a_server_shows_its_new_certificate_and_old_channels_find_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files, other = authority.issue("own"), authority.issue("other")
    reader = loaded(authority.issue("reader", identity=node("n0")))
    server, address = await start_server("127.0.0.1:0", [], OPEN, loaded(files))
    async with Channels(reader) as channels:
        await channels.to(address, TOP_SERVER)
        put(files, other, "cert", "key")
        assert (await tls_probe.probe(address, reader)).certificate == other.cert.read_bytes()
        await server.stop(None)
        with pytest.raises(PeerError):
            async with Channels(reader) as new:
                await new.to(address, TOP_SERVER)
