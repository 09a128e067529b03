"""What a worker and a handler's process say to each other, over one socket.

    worker ──ORDER──→ process           handler and context; the payload
           ←─BEAT, PROGRESS─ process    as often as `EVERY` at most, each time the newest
           ←─END─ process               how it ended; the result. Nothing comes after it

Invariants
- A frame is a head, a JSON object and bytes, each of bounded length; another is refused unread.
- Nothing is unpickled, in either direction.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from schedclient.handlers import Progress
from workerd.core.outcome import (
    MAX_ERROR,
    MAX_RESULT,
    AttemptOutcome,
    AttemptVerdict,
    Content,
    OutcomeReason,
)

HEAD: Final = struct.Struct("!cII")
"""Kind, and how long its object and its bytes are."""
MOST: Final = 1024 * 1024
"""Bytes of either, unless a result may have more. Names, paths and a payload of 256 KiB."""
EVERY: Final = 0.1
"""Seconds between two frames of a process that is at work."""

ORDER: Final = b"o"
BEAT: Final = b"b"
PROGRESS: Final = b"p"
END: Final = b"e"


class Garbled(ValueError):
    """What was said can't be meant."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One thing that is said."""

    kind: bytes
    told: Mapping[str, Any] = field(default_factory=dict)
    data: bytes = b""

    def encoded(self) -> bytes:
        """For the wire."""
        told = json.dumps(self.told).encode()
        return HEAD.pack(self.kind, len(told), len(self.data)) + told + self.data


def sizes(head: bytes, most: int = MOST) -> tuple[bytes, int, int]:
    """What a head says: kind, and both lengths, of bytes at most `most`. Raises Garbled."""
    kind, told, data = HEAD.unpack(head)
    if told > MOST or data > max(MOST, most):
        raise Garbled(f"a frame of {told + data} bytes")
    return kind, told, data


def frame(kind: bytes, told: bytes, data: bytes) -> Frame:
    """One that was read. Raises Garbled."""
    try:
        read = json.loads(told)
    except (ValueError, RecursionError) as error:
        raise Garbled(str(error)) from error
    if not isinstance(read, dict):
        raise Garbled("no object")
    return Frame(kind, read, data)


def told_progress(progress: Progress) -> Frame:
    """How far it is, to be sent."""
    told = {"done": progress.done, "total": progress.total, "note": progress.note}
    return Frame(PROGRESS, told)


def progress_in(said: Frame) -> Progress:
    """How far it is, as it came. Raises Garbled."""
    done, total, note = (said.told.get(key) for key in ("done", "total", "note"))
    if not (isinstance(done, float) and isinstance(total, float) and isinstance(note, str)):
        raise Garbled("no progress")
    if not (math.isfinite(total) and 0 <= done <= total and total > 0):
        raise Garbled("no progress")
    return Progress(done, total, note)


def told_end(outcome: AttemptOutcome) -> Frame:
    """How it ended, to be sent."""
    result, wait = outcome.result, outcome.retry_after
    told = {
        "verdict": outcome.verdict.name,
        "reason": outcome.reason.name,
        "error": outcome.error,
        "retry_after": None if wait is None else wait.total_seconds(),
        "json": None if result is None else result.json,
    }
    return Frame(END, told, b"" if result is None else result.data)


def end_in(said: Frame, most: int = MAX_RESULT) -> AttemptOutcome:
    """How it ended, as it came, with a result of at most so many bytes. Raises Garbled."""
    told, result = said.told, None
    if told.get("json") is not None:
        result = Content(said.data, json=bool(told["json"]))
    try:
        if result is not None and (len(result.data) > most or not _readable(result)):
            raise Garbled("its result can't be kept")
        wait = told.get("retry_after")
        return AttemptOutcome(
            AttemptVerdict[told["verdict"]],
            OutcomeReason[told["reason"]],
            str(told["error"])[:MAX_ERROR],
            result=result,
            retry_after=None if wait is None else timedelta(seconds=wait),
        )
    except Garbled:
        raise
    except (KeyError, TypeError, OverflowError, ValueError) as error:
        raise Garbled(f"no end: {error!r}") from error


def _readable(result: Content) -> bool:
    """A field of text can't hold anything else. Raises UnicodeDecodeError."""
    return not result.json or bool(result.data.decode())
