"""The door of the web page: who may read, and that nobody can write."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from fedgsp.errors import ConfigError
from fedgsp.identity import Identity, Role
from fedgsp.security.tls import TlsFiles, load
from fedgsp.settings.checks import check
from fedgsp.settings.run import RunConfig
from fedgsp.settings.web import WebSettings
from tests.support.certificates import Authority
from tests.support.recordings import long_run
from tests.support.web import KEY, client, messages
from top_server.web.guard import HEADERS, host_of
from top_server.web.runs import Runs
from top_server.web.serving import names_in, serve

PATHS = ["", "run?run=a", "runs.json", "run.json?run=a", "static/page.css", "events?run=a&from=0", "nothing"]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    long_run(folder / "a", rounds=2, clients=6, nodes=2)
    return folder


@contextlib.asynccontextmanager
async def served(folder: Path, settings: WebSettings) -> AsyncIterator[str]:
    """The address of a real server of the page."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(Runs(folder), settings, load(settings.tls_files), ready.set_result))
    try:
        yield await ready
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


@pytest.mark.parametrize("path", [path for path in PATHS if not path.startswith("events")])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_nothing_can_be_written(runs: Path, path: str, method: str) -> None:
    async with client(runs) as browser:
        assert (await browser.request(method, path)).status_code == 405


@pytest.mark.parametrize(
    "host", ["evil.example.org", "127.0.0.1.evil.example.org", "", "localhost.", "[::2]:1", "127.1"]
)
async def test_a_name_that_leads_here_by_dns_rebinding_reads_nothing(runs: Path, host: str) -> None:
    async with client(runs) as browser:
        answers = [await browser.get(path, headers={"host": host}) for path in PATHS]
    assert {answer.status_code for answer in answers} == {421}
    assert not any("writer" in answer.text.lower() for answer in answers)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:7080", "localhost:9", "LOCALHOST", "[::1]:7080"])
async def test_the_names_of_loopback_are_those_of_the_page(runs: Path, host: str) -> None:
    async with client(runs) as browser:
        assert (await browser.get("runs.json", headers={"host": host})).status_code == 200


def test_two_hosts_are_none() -> None:
    assert host_of(["localhost", "evil.example.org"]) == ""


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize(
    "how", [("cors", "empty"), ("no-cors", "image"), ("no-cors", "script"), ("navigate", "iframe")]
)
async def test_pages_of_other_origins_load_nothing(runs: Path, site: str, how: tuple[str, str]) -> None:
    said = {"sec-fetch-site": site, "sec-fetch-mode": how[0], "sec-fetch-dest": how[1], "origin": "http://localhost:1"}
    async with client(runs) as browser:
        answers = [await browser.get(path, headers=said) for path in PATHS]
    assert {answer.status_code for answer in answers} == {403}
    assert not any("access-control-allow-origin" in answer.headers for answer in answers)


async def test_a_link_on_another_page_may_lead_here(runs: Path) -> None:
    said = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    async with client(runs) as browser:
        assert (await browser.get("", headers=said)).status_code == 200


@pytest.mark.parametrize("path", ["", "run.json?run=a", "static/page.css", "nothing", "pictures/groups.png?run=a"])
async def test_every_answer_forbids_scripts_and_frames_of_others(runs: Path, path: str) -> None:
    async with client(runs) as browser:
        answers = [await browser.get(path), await browser.get(path, headers={"host": "x"}), await browser.post(path)]
    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "access-control-allow-origin" not in answer.headers
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("key", ["", "wrong", KEY[:-1], KEY + "x", KEY.upper()])
async def test_another_user_of_the_machine_does_not_know_the_key(runs: Path, key: str) -> None:
    async with client(runs) as browser:
        answers = [
            await browser.get(f"http://127.0.0.1:7080/{key}/{path}".replace("//", "/").replace(":/", "://"))
            for path in PATHS
        ]
    assert {answer.status_code for answer in answers} == {403}


@pytest.mark.parametrize(
    "path",
    [
        *("static/../app.py", "static/%2e%2e/app.py", "static/..%2fapp.py", "static//etc/passwd"),
        *("run.json?run=..%2F..%2Fa", "run.json?run=%2Fetc", "run.json?run=a%00"),
    ],
)
async def test_no_path_leads_out_of_the_folders(runs: Path, path: str) -> None:
    async with client(runs) as browser:
        answer = await browser.get(httpx.URL(f"http://127.0.0.1:7080/{KEY}/{path}"))
    assert answer.status_code == 404


@pytest.mark.parametrize("flag", ["--web", "--listen"])
@pytest.mark.parametrize("address", ["0.0.0.0:1", "*:1", "[::]:1", "top.example.org:1"])
def test_beyond_loopback_the_page_needs_tls_insecure_or_not(flag: str, address: str) -> None:
    for settings in (
        WebSettings(listen=address) if flag == "--listen" else RunConfig(web=address),
        *([RunConfig(web=address, insecure=True)] if flag == "--web" else []),
    ):
        with pytest.raises(ConfigError, match=f"{flag} .* is not on this machine's loopback.*give --federation or"):
            check(settings, {})


def with_tls(authority: Authority) -> WebSettings:
    files = authority.issue("top", hosts=["127.0.0.1", "localhost", "::1"])
    return WebSettings(listen="0.0.0.0:0", tls_ca=files.ca, tls_cert=files.cert, tls_key=files.key)


def browser_with(files: TlsFiles | None, ca: Path) -> httpx.AsyncClient:
    trusted = ssl.create_default_context(cafile=str(ca))
    if files is not None:
        trusted.load_cert_chain(files.cert, files.key)
    return httpx.AsyncClient(verify=trusted)


@pytest.mark.parametrize(
    ("identity", "status"),
    [
        (Identity(Role.OPERATOR, "ann"), 200),
        (Identity(Role.TOP_SERVER), 200),
        (Identity(Role.NODE, "berlin"), 403),
        (Identity(Role.INVITED, "berlin"), 403),
        (Identity(Role.MANAGER, "m0"), 403),
        (Identity(Role.GROUPING_SERVICE), 403),
        (None, 403),
    ],
)
async def test_beyond_loopback_only_operators_read(
    runs: Path, tmp_path: Path, identity: Identity | None, status: int
) -> None:
    authority = Authority(tmp_path)
    async with served(runs, with_tls(authority)) as address:
        base = address.replace("0.0.0.0", "127.0.0.1")
        async with browser_with(authority.issue("mine", identity=identity), authority.ca) as browser:
            answers = [
                await browser.get(base + path) for path in ("", "runs.json", "run.json?run=a", "static/page.css")
            ]
            assert {answer.status_code for answer in answers} == {status}
            if status == 403:
                assert "takes the certificate of an operator" in answers[0].text
            assert (await browser.get(base, headers={"host": "evil.example.org"})).status_code == 421


async def test_without_a_certificate_of_the_ca_there_is_no_connection(runs: Path, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    async with served(runs, with_tls(authority)) as address:
        base = address.replace("0.0.0.0", "127.0.0.1")
        for files in (None, other.issue("mine", identity=Identity(Role.OPERATOR, "ann"))):
            async with browser_with(files, authority.ca) as browser:
                with pytest.raises(httpx.TransportError):
                    await browser.get(base)
        async with httpx.AsyncClient() as plain:
            with pytest.raises(httpx.TransportError):
                await plain.get(base.replace("https", "http"))


async def test_a_renewed_certificate_counts_for_the_next_connection(runs: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine = authority.issue("mine", identity=Identity(Role.OPERATOR, "ann"))
    async with served(runs, with_tls(authority)) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        trusted = ssl.create_default_context(cafile=str(authority.ca))
        trusted.load_cert_chain(mine.cert, mine.key)

        async def shown() -> object:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
            number = writer.get_extra_info("peercert")["serialNumber"]
            writer.close()
            return number

        before = await shown()
        with_tls(authority)  # writes new files in the place of those that are served
        assert await shown() != before


async def test_on_loopback_a_stream_goes_on_where_the_header_of_the_browser_says(runs: Path) -> None:
    events = (runs / "a" / "events.jsonl").read_bytes()
    second = events.index(b"\n") + 1
    async with served(runs, WebSettings(listen="127.0.0.1:0")) as address, httpx.AsyncClient() as browser:
        assert address.startswith("http://127.0.0.1:")
        said = {"last-event-id": str(second)}
        async with browser.stream("GET", f"{address}events?run=a&from=0", headers=said) as answer:
            text = ""
            async for part in answer.aiter_text():
                text += part
                if (found := [one for one in messages(text) if "id" in one]) and found[-1]["id"] == str(len(events)):
                    break
    assert sum(len(one["data"]["events"]) for one in found) == events.count(b"\n") - 1


GET = b"GET /runs.json HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize("said", [b"", GET, GET + b"\r\n", GET + b"\r\n" + GET])
async def test_a_connection_without_a_request_is_closed(
    runs: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr("top_server.web.serving.SILENT_S", 0.2)
    async with served(runs, WebSettings(listen="127.0.0.1:0")) as address, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(address).port)
        for byte in said:
            writer.write(bytes([byte]))
        assert (await reader.read()).count(b"HTTP/1.1 ") == said.count(b"\r\n\r\n")
        writer.close()
        async with httpx.AsyncClient() as browser:
            assert (await browser.get(address + "runs.json")).status_code == 200


async def test_a_connection_that_makes_no_handshake_is_closed(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("top_server.web.serving.SILENT_S", 0.2)
    async with served(runs, with_tls(Authority(tmp_path))) as address, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(address).port)
        assert await reader.read() == b""
        writer.close()


async def test_a_stream_in_which_nothing_happens_stays_open(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("top_server.web.serving.SILENT_S", 0.1)
    monkeypatch.setattr("top_server.web.following.SIGN_OF_LIFE_S", 0.1)
    end = (runs / "a" / "events.jsonl").stat().st_size
    signs = 0
    async with (
        served(runs, WebSettings(listen="127.0.0.1:0")) as address,
        httpx.AsyncClient() as browser,
        browser.stream("GET", f"{address}events?run=a&from={end}") as answer,
    ):
        async for part in answer.aiter_text():
            if (signs := signs + part.count(": nothing new")) >= 5:
                break
    assert signs >= 5


async def test_a_port_that_is_taken_is_told(runs: Path) -> None:
    async with served(runs, WebSettings(listen="127.0.0.1:0")) as address:
        port = httpx.URL(address).port
        with pytest.raises(ConfigError, match=r"cannot listen at .*: Address already in use"):
            await serve(Runs(runs), WebSettings(listen=f"127.0.0.1:{port}"), None, lambda _: None)


def test_the_names_of_a_certificate_are_those_of_the_header(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("top", hosts=["127.0.0.1", "::1", "Top.example.org"])
    assert names_in(files.cert.read_bytes()) == {"127.0.0.1", "[::1]", "top.example.org"}
