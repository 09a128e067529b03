"""The protocol between a worker and a handler's process, over one socket.

    worker ──ORDER──→ process           handler and context; the payload
           ←─BEAT, PROGRESS─ process    at most once per `EVERY`, with the newest progress
           ←─END─ process               the outcome and the result; the last frame

Invariants
- A frame is a head, a JSON object and bytes, each of bounded length. Longer frames aren't read.
- No pickle, in either direction.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import field
from datetime import timedelta
from typing import Any, Final

from schedclient.handlers import Progress
from schedkit.records import dataclass
from workerd.core.outcome import (
    MAX_ERROR,
    MAX_RESULT,
    AttemptOutcome,
    AttemptVerdict,
    Content,
    OutcomeReason,
)

HEAD: Final = struct.Struct("!cII")
"""Kind, and the lengths of the object and of the bytes."""
MOST: Final = 1024 * 1024
"""Maximum bytes of each part, unless a result may have more: names, paths, a payload of 256 KiB."""
EVERY: Final = 0.1
"""Seconds between two frames of a running process."""

ORDER: Final = b"o"
BEAT: Final = b"b"
PROGRESS: Final = b"p"
END: Final = b"e"


class MalformedFrame(ValueError):
    """A frame isn't valid."""


@dataclass(frozen=True, slots=True)
class Frame:
    kind: bytes
    fields: Mapping[str, Any] = field(default_factory=dict)
    data: bytes = b""

    def encoded(self) -> bytes:
        fields = json.dumps(self.fields).encode()
        return HEAD.pack(self.kind, len(fields), len(self.data)) + fields + self.data


def sizes(head: bytes, most: int = MOST) -> tuple[bytes, int, int]:
    """Return kind and lengths from a head; of bytes at most `most`. Raises MalformedFrame."""
    kind, fields, data = HEAD.unpack(head)
    if fields > MOST or data > max(MOST, most):
        raise MalformedFrame(
            f"a message between the worker and a handler's process has {fields + data:,} bytes; at"
            f" most {MOST + max(MOST, most):,} are allowed"
        )
    return kind, fields, data


def frame(kind: bytes, fields: bytes, data: bytes) -> Frame:
    """Return the frame of these parts. Raises MalformedFrame."""
    try:
        read = json.loads(fields)
    except (ValueError, RecursionError) as error:
        raise MalformedFrame(
            f"a message between the worker and a handler's process isn't valid JSON: {error}"
        ) from error
    if not isinstance(read, dict):
        raise MalformedFrame(
            "a message between the worker and a handler's process isn't a JSON object"
        )
    return Frame(kind, read, data)


def progress_frame(progress: Progress) -> Frame:
    fields = {"done": progress.done, "total": progress.total, "note": progress.note}
    return Frame(PROGRESS, fields)


def progress_in(received: Frame) -> Progress:
    """Return the progress in a received frame. Raises MalformedFrame."""
    done, total, note = (received.fields.get(key) for key in ("done", "total", "note"))
    if not (isinstance(done, float) and isinstance(total, float) and isinstance(note, str)):
        raise MalformedFrame(
            "a progress report of the handler isn't valid: it needs done and total (numbers)"
            " and note (a text)"
        )
    if not (math.isfinite(total) and 0 <= done <= total and total > 0):
        raise MalformedFrame(
            f"a progress report of the handler isn't valid: done is {done:g} and total is"
            f" {total:g}, but done must be from 0 to total, and total above 0"
        )
    return Progress(done, total, note)


def end_frame(outcome: AttemptOutcome) -> Frame:
    result, wait = outcome.result, outcome.retry_after
    fields = {
        "verdict": outcome.verdict.name,
        "reason": outcome.reason.name,
        "error": outcome.error,
        "retry_after": None if wait is None else wait.total_seconds(),
        "json": None if result is None else result.json,
    }
    return Frame(END, fields, b"" if result is None else result.data)


def end_in(received: Frame, most: int = MAX_RESULT) -> AttemptOutcome:
    """Return the outcome in a frame; its result has at most `most` bytes. Raises MalformedFrame."""
    fields, result = received.fields, None
    if fields.get("json") is not None:
        result = Content(received.data, json=bool(fields["json"]))
    try:
        if result is not None and (len(result.data) > most or not _readable(result)):
            raise MalformedFrame(
                "the handler's result isn't valid: it is empty JSON, or has more than"
                f" {most:,} bytes"
            )
        wait = fields.get("retry_after")
        return AttemptOutcome(
            AttemptVerdict[fields["verdict"]],
            OutcomeReason[fields["reason"]],
            str(fields["error"])[:MAX_ERROR],
            result=result,
            retry_after=None if wait is None else timedelta(seconds=wait),
        )
    except MalformedFrame:
        raise
    except (KeyError, TypeError, OverflowError, ValueError) as error:
        raise MalformedFrame(
            f"the outcome that the handler's process sent isn't valid: {error!r}"
        ) from error


def _readable(result: Content) -> bool:
    """Return whether a text field can hold the result. Raises UnicodeDecodeError."""
    return not result.json or bool(result.data.decode())
