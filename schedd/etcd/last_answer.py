"""The time since etcd's last answer to this process: to the event loop's connection or the lease
keeper's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from schedd.core.events import Called, Emit, Service
from schedkit.clock import boottime
from schedkit.errors import Unavailable


class Silence:
    """Time without an answer of one cluster. Thread-safe: the last answer, and the first unanswered
    call, are one reference each, written atomically.
    """

    def __init__(self) -> None:
        self._answered = 0.0
        self._since = -1.0
        """Of the silence that is, or was: one that began before the last answer is over."""

    @contextmanager
    def around(self, call: str, emit: Emit) -> Iterator[float]:
        """Record a call of any endpoints, and whether it was answered. Yields the time at which it
        began.
        """
        began, failed = boottime(), True
        try:
            yield began
            failed = False
            self.broken()
        except Unavailable:
            self.unanswered(began)
            raise
        finally:
            emit(Called(Service.ETCD, call, boottime() - began, failed))

    def unanswered(self, began: float) -> None:
        """No endpoint has answered a call that began then (seconds of CLOCK_BOOTTIME)."""
        if self._since < self._answered:
            self._since = max(began, self._answered)

    def broken(self) -> None:
        """One has answered."""
        self._answered = boottime()

    @property
    def answered_once(self) -> bool:
        """Whether any call has been answered."""
        return self._answered > 0

    def seconds(self) -> float:
        """Seconds since the last answer or, if that is later, since the first call that no endpoint
        has answered began; 0: none since the last answer.
        """
        since = self._since
        return boottime() - since if since >= self._answered else 0.0
