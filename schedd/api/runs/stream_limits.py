"""How many streams one host may hold open at a member, so that it can't have all of them.

A stream costs memory, and a look at the database now and then, for as long as its reader likes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from schedd.api.errors import LimitReached

MOST_OF_ONE_HOST: Final = 256
MOST: Final = 2_048


class Places:
    """The streams that are open, by host."""

    def __init__(self, most_of_one: int = MOST_OF_ONE_HOST, most: int = MOST) -> None:
        self._most_of_one, self._most = most_of_one, most
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, peer: str) -> Iterator[None]:
        """A place for one stream of this peer (`host:port`, as its face tells it).

        Raises:
            TooMany: its host, or all together, have as many as they may.
        """
        host = peer.rpartition(":")[0] or peer
        if self._taken[host] >= self._most_of_one or self._taken.total() >= self._most:
            raise LimitReached(
                f"this host has {self._taken[host]:,} streams open here, all hosts"
                f" {self._taken.total():,}: at most {self._most_of_one:,} and {self._most:,}",
                reason="TOO_MANY_STREAMS",
                remedy="end some; one stream can watch many runs",
            )
        self._taken[host] += 1
        try:
            yield
        finally:
            self._taken[host] -= 1
            if not self._taken[host]:
                del self._taken[host]
