"""The time since etcd's last answer to this process.

Answers count on the event loop's connection and on the lease keeper's.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from schedd.core.events import Called, Emit, Service
from schedkit.clock import boottime
from schedkit.errors import Unavailable


class Silence:
    """Time without an answer from one cluster. Thread-safe: the last answer and the first
    unanswered call are one reference each, written atomically.
    """

    def __init__(self) -> None:
        self._answered = 0.0
        self._since = -1.0
        """Start of the latest silence. If it is before the last answer, that silence has ended."""

    @contextmanager
    def around(self, call: str, emit: Emit) -> Iterator[float]:
        """Record a call to any endpoints, and whether it was answered. Yield its start time."""
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
        """Record that no endpoint answered a call. `began`: seconds of CLOCK_BOOTTIME."""
        if self._since < self._answered:
            self._since = max(began, self._answered)

    def broken(self) -> None:
        self._answered = boottime()

    @property
    def answered_once(self) -> bool:
        return self._answered > 0

    def seconds(self) -> float:
        """Return the seconds without an answer; 0: no call has failed since the last answer. They
        count from the last answer, or from the start of the first unanswered call if that is
        later.
        """
        since = self._since
        return boottime() - since if since >= self._answered else 0.0
