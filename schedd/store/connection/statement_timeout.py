"""Waits that nobody else ends, ended here: the line of a call that takes too long is cut.

    call ──over──→ [ at work on its connection ] ──→ done
                        ├─ longer than `seconds` ──→ its socket is shut down: the call fails
                        └─ its server was replaced ─→ the same

PostgreSQL's timeouts are the server's own; one that stands still keeps none, and TCP sees nothing
wrong as long as its host, or something in between, answers. Without this a thread that waits for
such a server would wait for ever, and with a few of them the member would be deaf to the server
that took its place.

Invariants
- A line is cut only while its call is at work on it: the socket of a connection that was closed
  belongs to somebody else.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg2 import InterfaceError
from sqlalchemy import Engine, event

from schedd.core.cluster.shard_map import NO_TIMELINE
from schedd.core.ids import Timeline
from schedkit.clock import boottime


class TimedTransaction:
    """One transaction at work, on a server of this timeline. `cut`: its line was cut, so the server
    isn't to be asked again.
    """

    __slots__ = ("cut", "raw", "since", "timeline")

    def __init__(self, raw: Any, timeline: Timeline) -> None:
        self.raw = raw
        self.timeline = timeline
        self.since = boottime()
        self.cut = False

    def end(self) -> None:
        """Cut its line, once."""
        if not self.cut:
            self.cut = True
            _cut(self.raw)


class StatementTimeout:
    """Watches the calls over one engine; `seconds` each has, and may be set at any time."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self.seconds = seconds
        self._calls: set[TimedTransaction] = set()
        self._lock = threading.RLock()  # a connection may be closed by the collector, anywhere
        self._ended = threading.Event()
        event.listen(engine, "close", self._closing)
        self._thread = threading.Thread(target=self._watch, name="database-patience", daemon=True)
        self._thread.start()

    @contextmanager
    def over(self, raw: Any, timeline: Timeline = NO_TIMELINE) -> Iterator[TimedTransaction]:
        """Around the work on a connection of the driver's."""
        call = TimedTransaction(raw, timeline)
        with self._lock:
            self._calls.add(call)
        try:
            yield call
        finally:
            with self._lock:
                self._calls.discard(call)

    def end_below(self, timeline: Timeline) -> None:
        """Cut the lines of all calls at work on servers of lower timelines: what those still
        answer counts for nothing, and they may let a COMMIT wait for ever.
        """
        with self._lock:
            for call in self._calls:
                if NO_TIMELINE < call.timeline < timeline:
                    call.end()

    def end(self) -> None:
        """Watch no more."""
        self._ended.set()
        self._thread.join()

    def _closing(self, raw: Any, _record: object) -> None:
        """The pool is about to close this one: from now on its number may be another's."""
        with self._lock:
            self._calls = {call for call in self._calls if call.raw is not raw}

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self.seconds / 4)):
            now = boottime()
            with self._lock:
                for call in self._calls:
                    if now - call.since > self.seconds:
                        call.end()


def _cut(raw: Any) -> None:
    """Whoever reads from this connection finds its end."""
    try:
        with socket.socket(fileno=os.dup(raw.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
    except (OSError, InterfaceError):
        return  # it has ended by itself, and its call is about to find that out
