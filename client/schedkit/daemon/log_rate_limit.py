"""Limit repeated log lines, with a count, so that an outage doesn't flood the log.

    record ──same line, or too many of its kind──→ suppressed, counted
           └──────────────────────────────────────→ written, with repeated=N since the last

docs/operations/logs.md has the limits. A count is written with the next line that may be written,
otherwise with a later line of any kind, or when the process ends. A line with a traceback is never
suppressed.
"""

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TextIO

from schedkit.clock import boottime

WAITS: Final = (1.0, 10.0, 60.0)
"""Seconds between repetitions of a line: before the first, the second, and each later one."""
FORGET: Final = 120.0
"""Seconds without a repetition after which a line counts as new."""
MOST: Final = 20
SPAN: Final = 10.0
KNOWN: Final = 1_000
"""Maximum lines, and kinds of lines, that are remembered."""
ANSWERS: Final = frozenset({"schedkit.daemon.reload"})
"""Loggers that answer an operator's action. Their lines are never suppressed."""

_NUMBER: Final = re.compile(r"(?<![\w.:-])[+-]?\d+(\.\d+)?(?![\w.:-]*[A-Za-z_:-])")
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@dataclass(slots=True)
class _Suppressed:
    """A line or a kind of lines, and its records that weren't written: their number and the last.

    `since`: when a line was last written, or the span of a kind began. `written`: how often a line
    was repeated, or how many lines of a kind were written in the span. `seen`: the line's last
    record.
    """

    since: float
    written: int = 0
    seen: float = 0.0
    count: int = 0
    last: logging.LogRecord | None = None

    def suppress(self, record: logging.LogRecord) -> None:
        self.count += 1
        self.last = record

    def counted(self, record: logging.LogRecord, more: int = 0) -> logging.LogRecord:
        """Return the record with the number of suppressed ones, and reset it."""
        count, self.count, self.last = self.count - more, 0, None
        if not count:
            return record
        found = logging.makeLogRecord(vars(record))
        found.__dict__["repeated"] = count
        return found

    @property
    def wait(self) -> float:
        """Seconds between two repetitions of a line."""
        return WAITS[min(self.written, len(WAITS) - 1)]


@dataclass(slots=True)
class RateLimit:
    """Limits lines by those written recently. `clock`: returns seconds."""

    clock: Callable[[], float] = boottime
    _lines: dict[tuple[str, ...], _Suppressed] = field(default_factory=dict)
    _kinds: dict[tuple[str, ...], _Suppressed] = field(default_factory=dict)

    def admit(self, record: logging.LogRecord) -> Iterator[logging.LogRecord]:
        """Return the records to write now: counts that are due, then this one unless suppressed."""
        now = self.clock()
        yield from self._due(now)
        if record.exc_info or record.name in ANSWERS:
            yield record
            return
        key = (record.name, record.levelname, _text(record))
        line = self._lines.get(key)
        if line is not None and now - line.seen <= FORGET:
            line.seen = now
            if now - line.since < line.wait:
                line.suppress(record)
                return
            line.since, line.written = now, line.written + 1
            yield line.counted(record)
            return
        if self._crowded(record, now):
            return
        _bounded(self._lines)
        self._lines[key] = _Suppressed(now, seen=now)
        yield record

    def rest(self) -> Iterator[logging.LogRecord]:
        """Return the lines that were suppressed and not yet counted."""
        for one in (*self._lines.values(), *self._kinds.values()):
            if one.last is not None:
                yield one.counted(one.last, 1)

    def _due(self, now: float) -> Iterator[logging.LogRecord]:
        for line in self._lines.values():
            if line.last is not None and now - line.since >= line.wait:
                line.since, line.written = now, line.written + 1
                yield line.counted(line.last, 1)
        for kind in self._kinds.values():
            if kind.last is not None and now - kind.since >= SPAN:
                kind.since, kind.written = now, 1
                yield kind.counted(kind.last, 1)

    def _crowded(self, record: logging.LogRecord, now: float) -> bool:
        """Return whether too many different lines of its kind were written; if so, count it."""
        key = (record.name, record.levelname, str(record.msg))
        kind = self._kinds.get(key)
        if kind is None:
            _bounded(self._kinds)
            kind = self._kinds[key] = _Suppressed(now)
        if now - kind.since >= SPAN:
            kind.since, kind.written = now, 0
        if kind.written < MOST:
            kind.written += 1
            return False
        kind.suppress(record)
        return True


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes the lines that a rate limit admits, and all debug lines."""

    def __init__(self, stream: TextIO, limit: RateLimit | None = None) -> None:
        super().__init__(stream)
        self._limit = limit or RateLimit()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno <= logging.DEBUG:
            super().emit(record)
            return
        for admitted in self._limit.admit(record):
            super().emit(admitted)

    def close(self) -> None:
        """Write the counts that are left."""
        self.acquire()
        try:
            for admitted in self._limit.rest():
                super().emit(admitted)
        finally:
            self.release()
        super().close()


class LimitedLine:
    """A line that callers can cause at will: written at most once per second."""

    every: float = 1.0

    def __init__(self) -> None:
        self._since, self._written_at = 0, -1e9

    def due(self) -> int:
        """Count one occurrence. Return the number since the last line, or 0 if no line is due."""
        self._since += 1
        if boottime() - self._written_at < self.every:
            return 0
        since, self._since, self._written_at = self._since, 0, boottime()
        return since


def _bounded(known: dict[tuple[str, ...], _Suppressed]) -> None:
    if len(known) >= KNOWN:
        for key in [key for key, one in known.items() if one.last is None][: KNOWN // 2]:
            del known[key]
        while len(known) >= KNOWN:
            del known[next(iter(known))]


def _text(record: logging.LogRecord) -> str:
    """Return the identity of a line: text and extras, without numbers that change."""
    extras = [f"{k}={v}" for k, v in vars(record).items() if k not in _PLAIN and k != "repeated"]
    return _NUMBER.sub("#", " ".join([record.getMessage(), *extras]))
