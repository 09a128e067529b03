"""The log of a run on its page: stored, or so far.

    pieces of a stream ─▶ characters ─▶ without terminal escape sequences ─▶ parts

Invariants
- A character or escape sequence that is split between two pieces is decoded as one.
- The log so far is read once for each page, for WITHIN at most. The script then reads the whole
  log by REST and replaces it.
"""

import asyncio
import codecs
import re
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Final

from schedd.api.calls import STREAMING
from schedd.api.errors import CallError
from schedd.core.ids import Id, RunId
from schedd.web.pages.page import PageRequest
from schedkit.errors import Unavailable
from schedkit.records import dataclass, replace
from schedproto.v1 import run_pb2, run_service_pb2

LONGEST: Final = 256 * 1024
"""Newest characters of a stored log on the page; REST has the whole log."""
MOST_READ: Final = 8 * 1024 * 1024
"""Bytes that are read for those. Of a longer log, the page shows the beginning and the end."""
SO_FAR: Final = 64 * 1024
"""Newest characters of a log so far on the page."""
WITHIN: Final = 0.25
"""Seconds to read those."""
QUIET: Final = 0.08
"""Seconds without a piece after which the log so far counts as complete."""
_RAW: Final = "see the whole log with `schedctl run logs`"
_CONTROL: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\a\x1b\n]*(?:\a|\x1b\\))")
"""Escape sequences for colors (CSI), window titles and links (OSC)."""
_BEGUN: Final = re.compile(r"\x1b(\[[0-?]{0,32}[ -/]{0,8}|\][^\a\x1b\n]{0,512}\x1b?)?\Z")


@dataclass(frozen=True, slots=True)
class LogPart:
    """A piece of a log; `note`: about the log, not written by the job."""

    text: str
    error: bool
    note: bool = False


class _Written:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def text(self, data: bytes) -> str:
        decoded = self._begun + self._decoder.decode(data)
        begun = _BEGUN.search(decoded)
        self._begun = begun.group() if begun else ""
        return _CONTROL.sub("", decoded.removesuffix(self._begun))


class LogText:
    """Turns pieces of a log, in order, into parts."""

    def __init__(self) -> None:
        self._streams: defaultdict[tuple[int, int], _Written] = defaultdict(_Written)

    def parts(self, piece: run_pb2.LogPiece) -> Sequence[LogPart]:
        found = []
        if piece.omitted:
            found.append(LogPart(f"{piece.omitted:,} bytes omitted", False, True))
        if piece.note:
            found.append(LogPart(piece.note, False, True))
        if text := self._streams[piece.fencing_token, piece.stream].text(piece.data):
            found.append(LogPart(text, piece.stream == run_pb2.LogPiece.STREAM_STDERR))
        return found


async def read_newest_parts(asked: PageRequest, run_id: str) -> tuple[LogPart, ...]:
    """Return the newest parts of the stored log of a run that has ended."""
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
    return found.shown


async def _ends(asked: PageRequest, run_id: str) -> tuple[LogPart, ...]:
    stored = await asked.services.store.output(RunId(Id.parse(run_id)), None)
    pieces = run_pb2.Output.FromString(stored[1]).pieces if stored else ()
    text = LogText()
    return (_ENDS, *(part for piece in pieces for part in text.parts(piece)))


async def so_far(asked: PageRequest, run_id: str) -> tuple[LogPart, ...]:
    """Return the log so far of a running run; empty if it can't be read in time."""
    text, found = LogText(), Newest(SO_FAR)
    try:
        async with asyncio.timeout(WITHIN), aclosing(_pieces(asked, run_id, follow=True)) as pieces:
            while True:
                async with asyncio.timeout(QUIET):
                    piece = await anext(pieces)
                found.add(text.parts(piece))
    except (TimeoutError, StopAsyncIteration, CallError, Unavailable):
        return found.shown


async def _pieces(
    asked: PageRequest, run_id: str, *, follow: bool
) -> AsyncGenerator[run_pb2.LogPiece, None]:
    request = run_service_pb2.ReadLogsRequest(run_id=run_id, follow=follow)
    read = STREAMING["schedd.v1.RunService.ReadLogs"]
    async for piece in read(asked.services, asked.caller, request):
        assert isinstance(piece, run_pb2.LogPiece)
        yield piece


class Newest:
    """The newest parts of a log: at least `most` characters, from the beginning of a line."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: deque[LogPart] = deque()
        self._size = 0
        self._cut = self._within = False

    def add(self, parts: Iterable[LogPart]) -> None:
        for part in parts:
            self._parts.append(part)
            self._size += len(part.text)
        while self._parts and self._size - len(self._parts[0].text) >= self._most:
            last = self._parts.popleft()
            self._size -= len(last.text)
            self._cut, self._within = True, not last.text.endswith("\n")

    @property
    def shown(self) -> tuple[LogPart, ...]:
        if not self._cut:
            return (*self._parts,)
        first, *rest = self._parts
        if self._within and not first.note:
            first = replace(first, text=first.text.partition("\n")[2] or first.text)
        return (EARLIER, first, *rest)


EARLIER: Final = LogPart(f"earlier output omitted: {_RAW}", False, True)
_ENDS: Final = LogPart(f"beginning and end of a long log: {_RAW}", False, True)
