"""Limits of open streams, in total and for each host, so that one host can't use all of them.

An open stream costs memory and regular queries for as long as its reader stays.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from schedd.api.errors import LimitReachedError

MOST_OF_ONE_HOST: Final = 256
MOST: Final = 2_048


class Places:
    """The streams that are open, by host."""

    def __init__(self, most_of_one: int = MOST_OF_ONE_HOST, most: int = MOST) -> None:
        self._most_of_one, self._most = most_of_one, most
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, peer: str) -> Iterator[None]:
        """Count one stream of this peer (`host:port`) while it is open.

        Raises:
            LimitReachedError: its host, or all hosts together, have too many streams.
        """
        host = peer.rpartition(":")[0] or peer
        if self._taken[host] >= self._most_of_one or self._taken.total() >= self._most:
            raise LimitReachedError(
                f"too many open streams: your host has {self._taken[host]:,} (at most"
                f" {self._most_of_one:,}), all hosts together have {self._taken.total():,} (at"
                f" most {self._most:,})",
                reason="TOO_MANY_STREAMS",
                remedy="close some streams; one stream can watch many runs",
            )
        self._taken[host] += 1
        try:
            yield
        finally:
            self._taken[host] -= 1
            if not self._taken[host]:
                del self._taken[host]
