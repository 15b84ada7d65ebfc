"""A run that browsers follow: what its record says as a whole, and what is new, from where each browser left off.

A browser that reads slowly, or not at all, holds nothing up: each stream reads the file of the events by itself, from
the byte at which its browser is. So no event waits in memory, and none is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

import orjson

from fedgsp.errors import DataError, UserError
from fedgsp.files import open_file
from fedgsp.visible import visible
from fedgsp.within import within
from top_server.record.columns import is_client
from top_server.record.damage import MALFORMED
from top_server.record.directory import RunDirectory
from top_server.report.facts import restorable, told
from top_server.report.remedies import remedy_of
from top_server.report.story import Story
from top_server.report.troubles import is_trouble
from top_server.view.lines import describe
from top_server.web.overview import overview
from top_server.web.runs import parsed
from top_server.web.state import State, state_of

#: How long the trainings of a run wait to be counted, so that the page gets what it shows first.
COUNT_AFTER_S = 1.0
#: How often the file is looked at while somebody follows it, and how often a silent stream shows that it lives.
LOOK_S, SIGN_OF_LIFE_S = 0.25, 15.0
#: Bytes of events in one message, as a rule; a longer line is a message of its own. A browser that is further behind
#: than `MOST_BEHIND` reads the whole anew: that is less.
_MOST_BYTES, MOST_BEHIND = 1 << 18, 1 << 23
#: Messages that are kept for other browsers at the same place.
_KEPT = 8
#: What a browser is told if the place at which it was is gone: it then reads the whole anew.
ANEW = b"event: anew\ndata: {}\n\n"
_TRAINING = b'"event": "hop_finished"'
#: Bytes of a round that are sent at most: those of the largest rounds are some megabytes.
_MOST_OF_ROUND = 1 << 26


class Followed:
    """One run. All methods are for one event loop."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.story = Story(directory, parsed)
        self._reading = asyncio.Lock()
        self._whole: tuple[object, bytes] = (None, b"")
        self._first: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None
        #: Whether the trainings are damaged: then nothing is told without them.
        self._trainings_first = False
        self._messages: OrderedDict[int, tuple[int, bytes]] = OrderedDict()
        self._grown = asyncio.Event()
        self._followers = 0
        self.state = State()

    def begin_reading(self) -> None:
        """Begins to read a run that was not read before; whoever asks for it later is told of errors."""
        if not self.story.offset and self._first is None:
            self._first = asyncio.create_task(self._read_first(), name="read a run")

    async def _read_first(self) -> None:
        with contextlib.suppress(UserError):
            await self.whole()

    async def whole(self) -> bytes:
        """What the record says now, as JSON; raises UserError if it cannot be read.

        The first answer has no numbers of trainings, which take longest to read: they are read after it.
        """
        async with self._reading:
            found = await asyncio.to_thread(self._read)
        if not self.story.counted and (self._counting is None or self._counting.done()):
            self._counting = asyncio.create_task(self._count(), name="count trainings")
        return found

    def _read(self) -> bytes:
        self.state = state_of(self.directory)
        facts = told(self.story, self.state.lives, count=self._trainings_first)
        version = (self.story.offset, len(self.story.rows), self.story.counted, self.state)
        if self._whole[0] != version:
            with restorable(self.story):
                value = overview(facts, self.story, self.state)
                self._whole = version, orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
        return self._whole[1]

    async def _count(self) -> None:
        await asyncio.sleep(COUNT_AFTER_S)
        try:
            until, found = await asyncio.to_thread(self.story.count)
        except (DataError, *MALFORMED):
            async with self._reading:  # the next reader reads them too, and is told of the damage
                self._trainings_first = True
                self.story.forget()
            return
        async with self._reading:
            self.story.add_counted(until, found)

    async def round(self, number: int) -> bytes:
        """The events of a round, as JSON, with the byte from which to follow; raises DataError."""
        begin = self.story.begins.get(number)
        if begin is None:
            raise DataError(f"round {number} has not begun", "choose a round of the run")
        end = min((one for one in self.story.begins.values() if one > begin), default=None)
        return await asyncio.to_thread(self._events, begin, end)

    def _events(self, begin: int, end: int | None) -> bytes:
        try:
            with open_file(self.directory.events) as file:
                file.seek(begin)
                *lines, _ = file.read(_MOST_OF_ROUND if end is None else min(end - begin, _MOST_OF_ROUND)).split(b"\n")
            return self._told(lines, begin + sum(len(line) + 1 for line in lines))
        except OSError as error:
            raise DataError(f"{self.directory.events} cannot be read: {error.strerror}", "restore the file") from None
        except ValueError as error:
            raise DataError(f"{self.directory.events} is damaged: {error}", "restore the file") from None

    def _told(self, lines: list[bytes], end: int) -> bytes:
        """Events as they stand in the file, with the lines that people read, and the byte behind them.

        Raises ValueError for a damaged line.
        """
        others = (parsed(line) for line in lines if _TRAINING not in line[:80])
        said = [found for event in others if (found := self._line(event)) is not None]
        return b'{"events":[%b],"told":%b,"end":%d}' % (b",".join(lines), orjson.dumps(said), end)

    def _line(self, event: Any) -> dict[str, str] | None:
        if not isinstance(event, dict):
            raise ValueError("a line is not an object")
        found = {"time": visible(str(event.get("time", "")))[11:19]}
        try:
            if isinstance(names := event.get("names"), dict):
                self.story.names |= {int(one): str(name) for one, name in names.items() if is_client(one)}
            text = describe(event, self.story.names)
            remedy = {"remedy": remedy_of(event)} if is_trouble(event) else {}
        except MALFORMED:
            return found | {"text": "this line of events.jsonl cannot be read"}
        return None if text is None else found | {"text": text} | remedy

    async def stream(self, offset: int, closing: asyncio.Event) -> AsyncIterator[bytes]:
        """Messages of server-sent events from this byte of the events on, until `closing` is set and all is sent.

        The id of a message is the byte behind it.
        """
        self._followers += 1
        try:
            if self._followers == 1:
                self._looking = asyncio.create_task(self._look(closing), name="look at a run")
            state = State()
            while True:
                grown = self._grown
                if state != self.state:
                    state = self.state
                    yield b"event: state\ndata: %b\n\n" % orjson.dumps(state)
                if (found := self._message(offset)) is None:
                    yield ANEW
                    return
                end, message = found
                if message:
                    offset = end
                    yield message
                    continue
                if closing.is_set():
                    return
                with contextlib.suppress(TimeoutError):
                    await within(SIGN_OF_LIFE_S, grown.wait())
                    continue
                yield b": nothing new\n\n"
        finally:
            self._followers -= 1
            if not self._followers:
                self._looking.cancel()

    def _message(self, offset: int) -> tuple[int, bytes] | None:
        """The next message from a byte on, and the byte behind it; empty if there is nothing new.

        None if the file has no line that begins there, or far more than a message.
        """
        if offset in self._messages:
            return self._messages[offset]
        try:
            with open_file(self.directory.events) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, offset - 1))
                if size - offset > MOST_BEHIND or size < offset or (offset and file.read(1) != b"\n"):
                    return None
                data = file.read(_MOST_BYTES)
                if b"\n" not in data:
                    data += file.read(MOST_BEHIND)
        except OSError:
            return None
        *lines, rest = data.split(b"\n")
        if not lines:
            return offset, b""
        end = offset + len(data) - len(rest)
        try:
            message = b"id: %d\ndata: %b\n\n" % (end, self._told(lines, end))
        except ValueError:  # a damaged line: the whole says which
            return None
        self._messages[offset] = end, message
        while len(self._messages) > _KEPT:
            self._messages.popitem(last=False)
        return end, message

    async def _look(self, closing: asyncio.Event) -> None:
        """Wakes all streams when the file has grown, or when the process that records it has come or gone."""
        before: object = None
        while True:
            self.state = state_of(self.directory)
            try:
                status = os.stat(self.directory.events)
                now: object = (status.st_ino, status.st_size, self.state, closing.is_set())
            except OSError:
                now = None
            if now != before:
                before = now
                self._messages.clear()
                grown, self._grown = self._grown, asyncio.Event()
                grown.set()
            with contextlib.suppress(TimeoutError):
                await within(LOOK_S, closing.wait())
                if before is not None and closing.is_set():
                    self._grown.set()
                    return
