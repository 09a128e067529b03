"""A run's log as its page shows it: what is kept of one that has ended, or what there is so far.

    pieces of a stream ─▶ characters ─▶ without what colours a terminal ─▶ parts

Invariants
- A character, or a colour's code, that is split between two pieces is one all the same.
- What a run has written so far is asked for once a page, and waited for no longer than WITHIN: the
  script goes on by REST, from the beginning, in place of it.
"""

from __future__ import annotations

import asyncio
import codecs
import re
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from schedd.api.calls import STREAMING
from schedd.api.errors import CallError
from schedd.core.ids import RunId
from schedd.web.pages.page import PageRequest
from schedkit.errors import Unavailable
from schedproto.v1 import run_pb2, run_service_pb2

LONGEST: Final = 256 * 1024
"""Characters of a log that the page itself holds, its newest; REST has all of it."""
MOST_READ: Final = 8 * 1024 * 1024
"""Bytes that are read for those. Of a longer log the page has the ends, which the row has."""
SO_FAR: Final = 64 * 1024
"""Characters of one that is still written that the page comes with: its newest."""
WITHIN: Final = 0.25
"""Seconds for those."""
QUIET: Final = 0.08
"""Seconds without a piece after which that was all so far."""
_RAW: Final = "`schedctl run logs` has all of it"
_CONTROL: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\a\x1b\n]*(?:\a|\x1b\\))")
"""What colours a terminal (CSI), or names its window and makes links (OSC)."""
_BEGUN: Final = re.compile(r"\x1b(\[[0-?]{0,32}[ -/]{0,8}|\][^\a\x1b\n]{0,512}\x1b?)?\Z")


@dataclass(frozen=True, slots=True)
class LogPart:
    """A piece of a log; `note`: not written by the job, but about its log."""

    text: str
    error: bool
    note: bool = False


class _Written:
    """What one stream of an attempt writes, as text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def text(self, data: bytes) -> str:
        told = self._begun + self._decoder.decode(data)
        begun = _BEGUN.search(told)
        self._begun = begun.group() if begun else ""
        return _CONTROL.sub("", told.removesuffix(self._begun))


class LogText:
    """Pieces of a log, in their order, as the page shows them."""

    def __init__(self) -> None:
        self._streams: defaultdict[tuple[int, int], _Written] = defaultdict(_Written)

    def parts(self, piece: run_pb2.LogPiece) -> Sequence[LogPart]:
        """One piece more."""
        found = []
        if piece.omitted:
            found.append(LogPart(f"{piece.omitted:,} bytes are left out here", False, True))
        if piece.note:
            found.append(LogPart(piece.note, False, True))
        if text := self._streams[piece.fencing_token, piece.stream].text(piece.data):
            found.append(LogPart(text, piece.stream == run_pb2.LogPiece.STREAM_STDERR))
        return found


async def kept(asked: PageRequest, run_id: str) -> tuple[LogPart, ...]:
    """What a run wrote that has ended, as far as it is kept: the newest that fits a page."""
    text, found, size = LogText(), Newest(LONGEST), 0
    try:
        async with aclosing(_pieces(asked, run_id, follow=False)) as pieces:
            async for piece in pieces:
                size += len(piece.data)
                if size > MOST_READ:
                    return await _ends(asked, run_id)
                found.add(text.parts(piece))
    except CallError as error:
        found.add([LogPart(error.message, False, True)])
    return found.told


async def _ends(asked: PageRequest, run_id: str) -> tuple[LogPart, ...]:
    """The first and the last of what it wrote, without what lies between."""
    stored = await asked.services.store.output(RunId(UUID(run_id)), None)
    pieces = run_pb2.Output.FromString(stored[1]).pieces if stored else ()
    text = LogText()
    return (_ENDS, *(part for piece in pieces for part in text.parts(piece)))


async def so_far(asked: PageRequest, run_id: str) -> tuple[LogPart, ...]:
    """What a run that lives has written by now; nothing where that can't be told in time."""
    text, found = LogText(), Newest(SO_FAR)
    try:
        async with asyncio.timeout(WITHIN), aclosing(_pieces(asked, run_id, follow=True)) as pieces:
            while True:
                async with asyncio.timeout(QUIET):
                    piece = await anext(pieces)
                found.add(text.parts(piece))
    except (TimeoutError, StopAsyncIteration, CallError, Unavailable):
        return found.told


async def _pieces(
    asked: PageRequest, run_id: str, *, follow: bool
) -> AsyncGenerator[run_pb2.LogPiece, None]:
    request = run_service_pb2.ReadLogsRequest(run_id=run_id, follow=follow)
    read = STREAMING["schedd.v1.RunService.ReadLogs"]
    async for piece in read(asked.services, asked.caller, request):
        assert isinstance(piece, run_pb2.LogPiece)
        yield piece


class Newest:
    """The last parts of a log: so many characters, and the rest of the part that these begin in,
    from the beginning of a line on.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: deque[LogPart] = deque()
        self._size = 0
        self._cut = self._within = False

    def add(self, parts: Iterable[LogPart]) -> None:
        """These too."""
        for part in parts:
            self._parts.append(part)
            self._size += len(part.text)
        while self._parts and self._size - len(self._parts[0].text) >= self._most:
            last = self._parts.popleft()
            self._size -= len(last.text)
            self._cut, self._within = True, not last.text.endswith("\n")

    @property
    def told(self) -> tuple[LogPart, ...]:
        """As they are shown."""
        if not self._cut:
            return (*self._parts,)
        first, *rest = self._parts
        if self._within and not first.note:
            first = replace(first, text=first.text.partition("\n")[2] or first.text)
        return (EARLIER, first, *rest)


EARLIER: Final = LogPart(f"what came earlier is left out here: {_RAW}", False, True)
_ENDS: Final = LogPart(f"the beginning and the end of a long log: {_RAW}", False, True)
