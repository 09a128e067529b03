"""For how long etcd has answered nothing, whoever of this process asked: the event loop's
connection or the lease keeper's thread.
"""

from __future__ import annotations

from schedkit.clock import boottime


class Silence:
    """Of one cluster. May be told and asked by any thread: an answer, and the want of one, are each
    one reference that is written by itself.
    """

    def __init__(self) -> None:
        self._answered = 0.0
        self._since = -1.0
        """Of the silence that is, or was: one that began before the last answer is over."""

    def unanswered(self, began: float) -> None:
        """No endpoint has answered a call that began then (seconds of CLOCK_BOOTTIME)."""
        if self._since < self._answered:
            self._since = max(began, self._answered)

    def broken(self) -> None:
        """One has answered."""
        self._answered = boottime()

    def seconds(self) -> float:
        """Seconds since the last answer or, if that is later, since the first call that no endpoint
        has answered began; 0: none since the last answer.
        """
        since = self._since
        return boottime() - since if since >= self._answered else 0.0
