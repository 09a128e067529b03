"""Cursors of finite streams: the position in a log, and the watched runs that have ended. Pure.

    7-1024-20     attempt 7, bytes of its stdout and stderr
    9f3c01aa-5    of these runs, in order, the first and the third have ended

Invariant: a stream that continues from a cursor, on any member, repeats nothing that was sent
before it, and sends nothing after the end. Notes in a log are the exception: the note at the cursor
is sent again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final
from zlib import crc32

from schedd.api.errors import InvalidArgumentError, cut, wrong
from schedd.core.ids import NO_TOKEN, RunId, Token
from schedkit.records import dataclass
from schedproto.v1.run_pb2 import LogPiece

BEGINNING: Final = "0"
"""The cursor of a stream that ended before anything was sent."""

_LOG: Final = re.compile(r"(\d{1,18})-(\d{1,18})-(\d{1,18})", re.ASCII)
_RUNS: Final = re.compile(r"([0-9a-f]{8})-([0-9a-f]{1,256})")


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The bytes of each stream that were sent, of the attempt with this token."""

    token: Token = NO_TOKEN
    ends: Mapping[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        out, err = (
            self.ends.get(one, 0) for one in (LogPiece.STREAM_STDOUT, LogPiece.STREAM_STDERR)
        )
        return f"{self.token}-{out}-{err}"

    @classmethod
    def read(cls, text: str) -> LogPosition:
        """Parse a cursor; an empty one is the beginning. Raises InvalidArgumentError."""
        if text in ("", BEGINNING):
            return cls()
        found = _LOG.fullmatch(text)
        if found is None:
            raise refused(f"the cursor {cut(text)!r} isn't a valid position in the run's log")
        ends: dict[int, int] = {
            LogPiece.STREAM_STDOUT: int(found[2]),
            LogPiece.STREAM_STDERR: int(found[3]),
        }
        return cls(Token(int(found[1])), ends)


class EndedRuns:
    """The watched runs whose end was sent: those of the cursor `after`, and more later."""

    def __init__(self, watched: Sequence[RunId], after: str) -> None:
        """Raise InvalidArgumentError if `after` is a cursor of other runs."""
        self._places = {run_id: place for place, run_id in enumerate(watched)}
        self._digest = f"{crc32(b''.join(watched)):08x}"
        self._bits = 0
        if after not in ("", BEGINNING):
            self._bits = self._read(after)

    def _read(self, after: str) -> int:
        found = _RUNS.fullmatch(after)
        if found is None or found[1] != self._digest:
            raise refused(
                f"the cursor {cut(after)!r} isn't a valid position in the changes of these runs"
            )
        return int(found[2], 16)

    def end(self, run_id: RunId) -> None:
        self._bits |= 1 << self._places[run_id]

    @property
    def remaining_runs(self) -> list[RunId]:
        """The runs whose end wasn't sent yet."""
        return [run_id for run_id, place in self._places.items() if not self._bits >> place & 1]

    def __str__(self) -> str:
        return f"{self._digest}-{self._bits:x}"


def refused(problem: str) -> InvalidArgumentError:
    """Return the error for an invalid cursor."""
    return wrong(
        "resume_after",
        problem,
        "send the cursor of the last event unchanged, or leave resume_after out",
        reason="BAD_CURSOR",
    )
