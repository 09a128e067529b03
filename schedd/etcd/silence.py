"""For how long etcd has answered nothing, whoever of this process asked: the event loop's
connection or the lease keeper's thread.
"""

from __future__ import annotations

from schedkit.clock import boottime


class Silence:
    """Of one cluster. May be told and asked by any thread: what it holds is one reference."""

    def __init__(self) -> None:
        self._since: float | None = None

    def unanswered(self, began: float) -> None:
        """No endpoint has answered a call that began then (seconds of CLOCK_BOOTTIME)."""
        self._since = self._since or began

    def broken(self) -> None:
        """One has answered."""
        self._since = None

    def seconds(self) -> float:
        """Seconds since the first of the calls that no endpoint has answered since one did; 0: the
        last was answered.
        """
        since = self._since
        return 0.0 if since is None else boottime() - since
