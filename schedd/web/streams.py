"""Server-sent events: a streaming response that ends with its reader and never delays a shutdown.

    items ──▶ "id, event, data" as lines ──▶ all that is ready is sent at once ──▶ reader
                                             after 15 s of silence: a comment, as keepalive;
                                             on a page, after 10 s: a `beat` for its script
Invariants
- The response ends when the reader disconnects, the items end, or the server closes. No task of it
  runs after that.
- At most one piece is prepared ahead of the reader.
- The producer turns its errors into an event `error`; an exception here only ends the response.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import ExitStack, aclosing
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Final

from starlette.types import Receive, Scope, Send

KEEPALIVE: Final = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy ends the stream."""

HERE: Final = b": here\n\n"
"""A comment: browsers don't report it to scripts."""
BEAT_EVERY: Final = 10.0
"""Seconds of silence after which a page receives a `beat`. `schedd.js` reconnects after two missed
beats.
"""
MOST_READY: Final = 64 * 1024
"""Bytes of one piece, excluding its last event."""


@dataclass(frozen=True)
class ServerSentEvent:
    """A server-sent event. `data` may have several lines. Readers keep the id of an event that has
    only an id, and don't report it.
    """

    data: str
    name: str = ""
    id: str = ""

    @cached_property
    def encoded(self) -> bytes:
        """Return its bytes on the wire, encoded once for all readers."""
        lines = [f"id: {self.id}"] if self.id else []
        lines += [f"event: {self.name}"] if self.name else []
        if self.data or not self.id:
            lines += [f"data: {line}" for line in self.data.splitlines() or [""]]
        return ("\n".join(lines) + "\n\n").encode()


BEAT: Final = "beat"
"""The keepalive event; its data is the name of the member."""


class Ready:
    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._over = False
        self._some, self._room = asyncio.Event(), asyncio.Event()

    async def put(self, piece: bytes) -> None:
        """Add an event; return when there is room for another."""
        self._pieces.append(piece)
        self._size += len(piece)
        self._some.set()
        if self._size >= MOST_READY:
            self._room.clear()
            await self._room.wait()

    def end(self) -> None:
        self._over = True
        self._some.set()

    async def take_bytes(self) -> bytes:
        """Return all that is ready, as soon as anything is; empty at the end."""
        await self._some.wait()
        taken = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._room.set()
        if not self._over:
            self._some.clear()
        return taken


@dataclass(eq=False)
class EventStream:
    """An ASGI response that sends `events` until they end, and `beat` first and after `every`
    seconds of silence.
    """

    events: AsyncGenerator[ServerSentEvent, None]
    closing: asyncio.Event
    _: KW_ONLY
    beat: bytes = HERE
    every: float = KEEPALIVE

    def __post_init__(self) -> None:
        self._over = ExitStack()
        self._ready = Ready()

    def call_at_end(self, callback: Callable[[], object]) -> None:
        """Call `callback()` at the end, also if no event was read."""
        self._over.callback(callback)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._respond(scope, receive, send)
        finally:
            self._over.close()

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", b"text/event-stream; charset=utf-8"),
                    (b"cache-control", b"no-store"),
                    (b"x-accel-buffering", b"no"),
                ],
            }
        )
        if scope["method"] != "HEAD":
            await self._stream(receive, send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _stream(self, receive: Receive, send: Send) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._make(), name="event stream: events")]

            def until(step: Callable[[], Coroutine[Any, Any, object]], name: str) -> None:
                async def run() -> None:
                    await step()
                    for task in tasks:
                        if task is not asyncio.current_task():
                            task.cancel()

                tasks.append(group.create_task(run(), name=f"event stream: {name}"))

            until(lambda: self._send_all(send), "sending")
            until(lambda: _wait_for_disconnect(receive), "reader")
            until(self.closing.wait, "closing")

    async def _make(self) -> None:
        async with aclosing(self.events) as events:
            async for event in events:
                await self._ready.put(event.encoded)
        self._ready.end()

    async def _send_all(self, send: Send) -> None:
        piece = self.beat
        while piece:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            try:
                async with asyncio.timeout(self.every):
                    piece = await self._ready.take_bytes()
            except TimeoutError:
                piece = self.beat


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
