"""Events as they go over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from schedd.web.streams import BEAT, HERE, MOST_READY, EventStream, ServerSentEvent
from support.wait import WAIT_TIMEOUT, wait_until_async


class Reader:
    """A reader of a stream, with the pieces that came. It takes none while `takes` isn't set."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.takes = asyncio.Event()
        self.takes.set()

    async def read(self, events: AsyncGenerator[ServerSentEvent, None], **beats: Any) -> None:
        """Until its end."""
        response = EventStream(events, asyncio.Event(), **beats)
        await response({"type": "http", "method": "GET"}, self._receive, self._send)

    async def _receive(self) -> Any:
        await asyncio.Event().wait()

    async def _send(self, message: Any) -> None:
        if message.get("body"):
            await self.takes.wait()
            self.pieces.append(message["body"])


def test_an_event_is_its_fields_a_line_each_and_an_empty_line() -> None:
    assert ServerSentEvent("x", name="end", id="7").encoded == b"id: 7\nevent: end\ndata: x\n\n"


def test_text_of_many_lines_stays_one_event() -> None:
    assert ServerSentEvent("a\nb\r\nc").encoded == b"data: a\ndata: b\ndata: c\n\n"


def test_an_event_without_text_is_still_one() -> None:
    assert ServerSentEvent("").encoded == b"data: \n\n"


def test_a_beat_is_an_event_that_a_browser_receives_and_keeps_the_last_id() -> None:
    beat = ServerSentEvent("", name=BEAT)
    assert beat.encoded == b"event: beat\ndata: \n\n"  # without a line of data no event is raised


async def test_events_that_are_ready_go_in_one_piece_and_the_last_of_them_too() -> None:
    reader, further = Reader(), asyncio.Event()

    async def events() -> AsyncGenerator[ServerSentEvent, None]:
        for number in range(100):
            yield ServerSentEvent(str(number))
        await further.wait()
        yield ServerSentEvent("later")
        yield ServerSentEvent("last")

    reading = asyncio.create_task(reader.read(events()))
    await wait_until_async(lambda: len(reader.pieces) == 2, WAIT_TIMEOUT, "what was ready")
    assert reader.pieces[1] == b"".join(
        ServerSentEvent(str(number)).encoded for number in range(100)
    )
    further.set()
    await asyncio.wait_for(reading, WAIT_TIMEOUT)
    assert reader.pieces[2:] == [b"data: later\n\ndata: last\n\n"]


async def test_a_blocked_reader_gets_no_more_than_one_chunk_prepared() -> None:
    reader, made = Reader(), 0

    async def events() -> AsyncGenerator[ServerSentEvent, None]:
        nonlocal made
        while made < 1000:
            made += 1
            yield ServerSentEvent("x" * 1024)

    reader.takes.clear()
    reading = asyncio.create_task(reader.read(events()))
    await wait_until_async(lambda: made * 1024 >= MOST_READY - 1024, WAIT_TIMEOUT, "a piece")
    for _ in range(20):
        await asyncio.sleep(0)
    assert made * 1024 <= MOST_READY
    reader.takes.set()
    await asyncio.wait_for(reading, WAIT_TIMEOUT)
    assert b"".join(reader.pieces).count(b"data: ") == 1000
    assert max(map(len, reader.pieces)) <= MOST_READY + len(ServerSentEvent("x" * 1024).encoded)


@pytest.mark.parametrize(
    "beat", [HERE, ServerSentEvent("m1", name=BEAT).encoded], ids=["a comment", "an event"]
)
async def test_a_silent_stream_sends_beats(beat: bytes) -> None:
    reader, further = Reader(), asyncio.Event()

    async def events() -> AsyncGenerator[ServerSentEvent, None]:
        await further.wait()
        yield ServerSentEvent("at last")

    reading = asyncio.create_task(reader.read(events(), beat=beat, every=0.01))
    await wait_until_async(lambda: len(reader.pieces) > 3, WAIT_TIMEOUT, "beats")
    assert {*reader.pieces} == {beat}, "the first piece, too"
    further.set()
    await asyncio.wait_for(reading, WAIT_TIMEOUT)
    assert reader.pieces[-1] == b"data: at last\n\n"
