"""Client-side timeout: the socket of a call that takes too long is shut down.

    call ──over──→ [ uses its connection ] ──→ done
                        ├─ longer than `seconds` ──→ its socket is shut down: the call fails
                        └─ its server was replaced ─→ the same

PostgreSQL enforces its timeouts on the server, so a hanging server enforces none. TCP keepalive
doesn't help while the host, or a proxy in between, still answers. Without this timeout, calls would
block the threads for ever, and the member couldn't reach the new primary.

Invariant: a socket is shut down only while its call uses it. After a close, the descriptor may
belong to another connection.
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
    """A running transaction on a server of this timeline. `cut`: its socket was shut down, so the
    call isn't retried.
    """

    __slots__ = ("cut", "raw", "since", "timeline")

    def __init__(self, raw: Any, timeline: Timeline) -> None:
        self.raw = raw
        self.timeline = timeline
        self.since = boottime()
        self.cut = False

    def end(self) -> None:
        """Shut the socket down, once: a thread that reads from it sees the end of the stream."""
        if self.cut:
            return
        self.cut = True
        try:
            with socket.socket(fileno=os.dup(self.raw.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)
        except (OSError, InterfaceError):
            return  # the connection has ended already, and its call is about to fail


class StatementTimeout:
    """Ends calls of one engine that take longer than `seconds`, which may change at any time."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self.seconds = seconds
        self._calls: set[TimedTransaction] = set()
        self._lock = threading.RLock()  # a connection may be closed by the collector, anywhere
        self._ended = threading.Event()
        event.listen(engine, "close", self._closing)
        self._thread = threading.Thread(target=self._watch, name="database-timeouts", daemon=True)
        self._thread.start()

    @contextmanager
    def limit_connection(
        self, raw: Any, timeline: Timeline = NO_TIMELINE
    ) -> Iterator[TimedTransaction]:
        """Limit the time of the work on this driver connection."""
        call = TimedTransaction(raw, timeline)
        with self._lock:
            self._calls.add(call)
        try:
            yield call
        finally:
            with self._lock:
                self._calls.discard(call)

    def end_below(self, timeline: Timeline) -> None:
        """Shut down the sockets of all calls on servers of lower timelines: those were replaced.
        Such a server's answers don't count, and its COMMIT may wait for ever.
        """
        with self._lock:
            for call in self._calls:
                if NO_TIMELINE < call.timeline < timeline:
                    call.end()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _closing(self, raw: Any, _record: object) -> None:
        """Forget this connection before the pool closes it: its descriptor may be reused."""
        with self._lock:
            self._calls = {call for call in self._calls if call.raw is not raw}

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self.seconds / 4)):
            now = boottime()
            with self._lock:
                for call in self._calls:
                    if now - call.since > self.seconds:
                        call.end()
