"""All commits in their order, read from the slot, each once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from faults.decoding import commits
from faults.history import Commit
from faults.world.postgres import SLOT, Server

LARGE = ("outputs", "results")
"""Tables that no check looks at."""

_CHANGES = (
    "SELECT lsn::text, xid::text, data FROM pg_logical_slot_get_changes"
    "(%s, NULL, NULL, 'include-xids', '1', 'include-timestamp', '1')"
)


class Commits:
    """The reader of the slot; the only one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._seen: set[tuple[str, int]] = set()

    def continue_with(self, server: Server) -> None:
        """Read there from now on: it has what the other had, under the same lsn, and a slot that
        begins where the other's began.
        """
        self._server = server

    def restart(self) -> None:
        """Forget what was read: a restored server has a new slot, which repeats numbers."""
        self._seen.clear()

    def absorb(self) -> list[Commit]:
        """Return what was committed since the last time.

        A server that crashed, or took another's place, may return again what was read before:
        that is left out.
        """
        return list(self._unseen(commits(self._server.sql(_CHANGES, SLOT), without=LARGE)))

    def _unseen(self, read: Iterable[Commit]) -> Iterator[Commit]:
        for commit in read:
            mark = (commit.lsn, commit.xid)
            if mark not in self._seen:
                self._seen.add(mark)
                yield commit
