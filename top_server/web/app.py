"""The pages and the data of the web page. All of it is read from the records of runs."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import fedgsp
from fedgsp.errors import DataError, UserError
from fedgsp.visible import visible
from top_server.report.facts import restorable
from top_server.web import pictures
from top_server.web.compared import MOST_COMPARED, compared
from top_server.web.following import Followed
from top_server.web.runs import Runs, glance

#: Runs whose record is kept in memory, for the next request: those that were asked for last.
_KEPT = 8
#: Streams of events at once; each is a connection.
MOST_STREAMS = 500
_JSON = "application/json"


class Pages:
    """The handlers of all paths."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._followed: OrderedDict[str, Followed] = OrderedDict()
        self._looking = asyncio.Lock()
        self._streams = 0
        #: Set when the process ends: streams send what is new, and end.
        self.closing = asyncio.Event()
        self._pages = Environment(
            loader=PackageLoader("top_server.web", "pages"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def app(self) -> Starlette:
        """The application, without its door."""
        answers: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/": self.index,
            "/run": self.run,
            "/compare": self.compare,
            "/runs.json": self.listed,
            "/run.json": self.whole,
            "/round.json": self.round,
            "/compare.json": self.compared,
            "/events": self.events,
            "/pictures/{name}.png": self.picture,
        }
        routes = [Route(path, answer, methods=["GET"]) for path, answer in answers.items()]
        static = StaticFiles(directory=Path(__file__).parent / "static")
        app = Starlette(
            routes=[*routes, Mount("/static", static)],
            exception_handlers={UserError: _mistake(self._pages)},  # type: ignore[dict-item]
        )
        app.router.redirect_slashes = False  # the address that is redirected to would lack the key
        return app

    def _page(self, page: str, **values: Any) -> HTMLResponse:
        return HTMLResponse(
            self._pages.get_template(f"{page}.html.jinja").render(version=fedgsp.__version__, **values)
        )

    async def index(self, _: Request) -> Response:
        """The list of runs."""
        return self._page("runs", folder=visible(str(self._runs.root)))

    async def run(self, request: Request) -> Response:
        """One run."""
        name = request.query_params.get("run", "")
        (await self._of(request)).begin_reading()  # while the browser loads its scripts
        return self._page("run", name=visible(name))

    async def compare(self, _: Request) -> Response:
        """Several runs over one another."""
        return self._page("compare")

    async def listed(self, _: Request) -> Response:
        """The list of runs, newest first."""
        return _json(await asyncio.to_thread(self._listed))

    def _listed(self) -> bytes:
        return orjson.dumps([asdict(glance(*one)) | {"run": one[0]} for one in self._runs.found().items()])

    async def whole(self, request: Request) -> Response:
        """What one run says as a whole."""
        return _json(await (await self._of(request)).whole())

    async def round(self, request: Request) -> Response:
        """The events of one round."""
        followed = await self._of(request)
        if not followed.story.offset:
            await followed.whole()
        return _json(await followed.round(_number(request, "round")))

    async def compared(self, request: Request) -> Response:
        """Curves and figures of several runs."""
        chosen = request.query_params.getlist("run")
        names = chosen[:MOST_COMPARED]
        stories = [await self._get(name) for name in names]
        for one in stories:
            await one.whole()
        found = await asyncio.to_thread(
            compared, [(name, one.story) for name, one in zip(names, stories, strict=True)]
        )
        return _json(orjson.dumps(found | {"chosen": len(chosen)}))

    async def picture(self, request: Request) -> Response:
        """Who trained with whom, and distances, as pictures."""
        followed = await self._of(request)
        await followed.whole()
        draw = pictures.PICTURES.get(request.path_params["name"])
        with restorable(followed.story):
            found = await asyncio.to_thread(draw, followed.story) if draw else None
        if found is None:
            return JSONResponse({"error": "the run has no such picture"}, HTTPStatus.NOT_FOUND)
        return Response(found, media_type="image/png")

    async def events(self, request: Request) -> Response:
        """The stream of events of one run, from a byte of its file on."""
        followed = await self._of(request)
        again = request.headers.get("last-event-id")
        offset = int(again) if again and again.isdecimal() and len(again) < 19 else _number(request, "from")
        if self._streams >= MOST_STREAMS:
            raise MissingError("there are too many open pages", "close some of them", HTTPStatus.SERVICE_UNAVAILABLE)

        async def body() -> Any:
            self._streams += 1
            try:
                async for message in followed.stream(offset, self.closing):
                    yield message
            finally:
                self._streams -= 1

        return StreamingResponse(body(), media_type="text/event-stream")

    async def _of(self, request: Request) -> Followed:
        return await self._get(request.query_params.get("run", ""))

    async def _get(self, name: str) -> Followed:
        if name not in self._followed:
            async with self._looking:  # one at a time: questions for runs that are not there take no further threads
                if name not in self._followed:
                    directory = await asyncio.to_thread(self._runs.get, name)
                    if directory is None:
                        raise MissingError(f"there is no run {visible(name[:200])!r} here", "choose one from the list")
                    self._followed[name] = Followed(directory)
        self._followed.move_to_end(name)
        while len(self._followed) > _KEPT:
            self._followed.popitem(last=False)
        return self._followed[name]


class MissingError(DataError):
    """What was asked for is not there."""

    def __init__(self, what: str, remedy: str, status: HTTPStatus = HTTPStatus.NOT_FOUND) -> None:
        super().__init__(what, remedy)
        self.status = status


def _json(content: bytes) -> Response:
    return Response(content, media_type=_JSON)


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not text.isdecimal() or len(text) > 18:
        raise MissingError(f"{name} is no number", "follow the links of the page", HTTPStatus.BAD_REQUEST)
    return int(text)


def _mistake(pages: Environment) -> Callable[[Request, UserError], Awaitable[Response]]:
    async def answer(request: Request, error: UserError) -> Response:
        status = getattr(error, "status", HTTPStatus.CONFLICT)
        found = {"error": visible(error.what), "remedy": visible(error.remedy)}
        if request.headers.get("sec-fetch-dest") == "document":
            text = pages.get_template("sorry.html.jinja").render(version=fedgsp.__version__, **found)
            return HTMLResponse(text, status)
        return JSONResponse(found, status)

    return answer
