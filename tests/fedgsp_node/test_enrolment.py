"""The folder of a node's identity, and its renewal while the node runs."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path

import pytest

from fedgsp.connections.channels import Channels, start_server
from fedgsp.connections.proxy import Proxy
from fedgsp.errors import ConfigError, PeerError
from fedgsp.identity import TOP_SERVER
from fedgsp.security.certificates import renewal_due
from fedgsp.security.tls import load
from fedgsp.security.tls_followed import Followed
from fedgsp.settings.run import NodeSettings, RunConfig
from fedgsp_node.connections.credentials import credentials
from fedgsp_node.enrolment import command, folder, renewal
from tests.support.callers import OPEN
from tests.support.connect_proxy import connect_proxy
from tests.support.federations import federated, invite
from tests.support.fuzzing import until
from top_server.federation import authority
from top_server.federation.opening import certify


async def test_a_node_renews_its_certificate_with_a_new_key_and_new_connections_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federated(tmp_path / "federation", monkeypatch) as scene:
        own = await scene.enrol("n0")
        where = own.files.cert.parent
        followed, before = Followed(own), folder.certificate_in(where)
        due = renewal_due(before)
        assert dt.timedelta(days=4) < due - dt.datetime.now(dt.UTC) < dt.timedelta(days=5)
        moments = iter([due - dt.timedelta(milliseconds=1), due])
        monkeypatch.setattr(renewal, "now", lambda: next(moments, dt.datetime.now(dt.UTC)))
        async with renewal.renewed(where, "n0", scene.address):
            await until(lambda: folder.certificate_in(where).serial_number != before.serial_number)
        after = folder.certificate_in(where)
        assert after.public_key() != before.public_key()
        assert renewal_due(after) >= due
        assert followed.now().cert != own.cert
        assert where.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in where.iterdir()} == {0o600}


async def test_a_renewal_that_fails_is_tried_again_and_the_old_certificate_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(renewal, "LOOK_S", 0.01)
    async with federated(tmp_path / "federation", monkeypatch) as scene:
        own = await scene.enrol("n0")
        where = own.files.cert.parent
        content = own.files.cert.read_bytes()
        scene.revoke("n0")
        await until(lambda: len(scene.managers.told) > 1)
        far = dt.datetime.now(dt.UTC) + dt.timedelta(days=5)
        monkeypatch.setattr(renewal, "now", lambda: far)
        async with renewal.renewed(where, "n0", scene.address):
            await until(lambda: caplog.text.count("is not renewed yet: the top server gives no certificate") > 1)
        assert own.files.cert.read_bytes() == content


async def test_a_certificate_that_is_not_good_yet_does_not_take_the_place_of_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the top server is ahead by days, and is set right later."""
    async with federated(tmp_path / "federation", monkeypatch) as scene:
        own = await scene.enrol("n0")
        content = own.files.cert.read_bytes()
        monkeypatch.setattr(authority, "now", lambda: dt.datetime.now(dt.UTC) + dt.timedelta(days=3))
        with pytest.raises(PeerError, match=r"the new certificate is good from .* UTC on, and it is .*set the clocks"):
            await renewal._again(own.files.cert.parent, "n0", scene.address, None)
        assert own.files.cert.read_bytes() == content


def test_an_identity_that_is_missing_or_late_or_open_to_others_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = NodeSettings(top_server="127.0.0.1:1", identity=tmp_path / "none")
    with pytest.raises(ConfigError, match=r"--identity .*none holds no identity; ask for an invitation"):
        credentials(settings)


async def test_a_folder_is_that_of_one_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with federated(tmp_path / "federation", monkeypatch) as scene:
        own = await scene.enrol("n0")
        where = own.files.cert.parent
        settings = NodeSettings(top_server=scene.address, identity=where)
        assert credentials(settings) is not None
        with pytest.raises(ConfigError, match="is that of node n0; give another folder"):
            folder.prepare(where, scene.invite("n1", "2"))
        scene.revoke("n0")
        assert folder.prepare(where, scene.invite("n0")) is None  # a new invitation of the same node
        monkeypatch.setattr(folder, "now", lambda: dt.datetime.now(dt.UTC) + dt.timedelta(days=8))
        with pytest.raises(ConfigError, match=r"ended on .* UTC; ask for `top-server revoke`"):
            credentials(settings)
        monkeypatch.undo()
        own.files.key.chmod(0o644)
        with pytest.raises(ConfigError, match=r"--identity: file .*node.pem can be used by every user"):
            credentials(settings)


async def test_a_broken_file_of_an_identity_is_named_with_its_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federated(tmp_path / "federation", monkeypatch) as scene:
        own, other = await scene.enrol("n0"), await scene.enrol("n1", "2")
        settings = NodeSettings(top_server=scene.address, identity=own.files.cert.parent)
        good = own.files.cert.read_bytes()
        certificate, begin, key = good.partition(b"-----BEGIN EC PRIVATE KEY")
        certificate, begin, key = good.partition(b"-----BEGIN PRIVATE KEY") if not begin else (certificate, begin, key)
        broken = {
            "is not the key of --identity: file .*node.pem": certificate + other.key,
            "node.pem holds no usable PEM private key": certificate,
            "--identity: .*node.pem holds no certificate": begin + key,
        }
        for why, content in broken.items():
            own.files.cert.write_bytes(content)
            with pytest.raises(ConfigError, match=why) as caught:
                credentials(settings)
            assert str(caught.value).startswith("--identity: ")
            assert "invitation" in caught.value.remedy
            assert "--tls" not in str(caught.value)
        own.files.cert.write_bytes(good)
        own.files.ca.unlink()
        with pytest.raises(ConfigError, match=r"^--identity: file .*ca.pem cannot be read: No such file"):
            credentials(settings)


async def test_a_top_server_of_another_ca_is_told_with_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federated(tmp_path / "federation", monkeypatch) as scene:
        invite(tmp_path / "other", "n0")
        certify(config := RunConfig(federation=tmp_path / "other", listen="127.0.0.1:0"))
        server, address = await start_server("127.0.0.1:0", [], OPEN, load(config.tls_files))
        async with Channels(await scene.enrol("n0")) as channels:
            with pytest.raises(PeerError, match=r"did not issue the certificate in --identity.*check --top-server"):
                await channels.to(address, TOP_SERVER)
        await server.stop(None)


async def test_an_enrolment_whose_answer_was_lost_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with federated(tmp_path / "federation", monkeypatch) as scene:
        token, where = scene.invite("n0").token, tmp_path / "identity"
        with monkeypatch.context() as patch:
            patch.setattr(folder, "write", lambda *_: 1 / 0)  # the process ends when the top server has answered
            with pytest.raises(ZeroDivisionError):
                await command._enrol(token, scene.address, where)
        await command._enrol(token, scene.address, where)
        assert sorted(path.name for path in where.iterdir()) == ["ca.pem", "node.pem"]
        first = (where / "node.pem").read_bytes()
        await command._enrol(token, "127.0.0.1:9", where)  # it is enrolled already: nobody is asked
        assert "node n0 was enrolled already" in capsys.readouterr().out
        assert (where / "node.pem").read_bytes() == first
        with pytest.raises(PeerError, match="was used already"):
            await command._enrol(token, scene.address, tmp_path / "other")


async def test_a_node_behind_a_proxy_enrols_and_renews_by_way_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federated(tmp_path / "federation", monkeypatch) as scene, connect_proxy() as way:
        proxy, where = Proxy(way.address), tmp_path / "identity"
        await command._enrol(scene.invite("n0").token, scene.address, where, proxy)
        assert way.opened == [scene.address] * 2  # the certificate of the server is looked at before
        before = folder.certificate_in(where)
        await renewal._again(where, "n0", scene.address, proxy)
        assert folder.certificate_in(where).serial_number != before.serial_number
        assert way.opened == [scene.address] * 4


def test_a_token_comes_from_the_command_line_a_file_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = invite(tmp_path / "federation", "a").token
    (tmp_path / "token").write_text(f"{token}\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
    found = [command._read(text).strip() for text in (token, f"@{tmp_path / 'token'}", "-")]
    assert found == [token] * 3
    with pytest.raises(ConfigError, match="give the file of a token after the @"):
        command._read("@/dev/zero")
