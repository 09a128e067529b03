"""All commits in their order, read from the slot; what concerns the cluster is kept for ever.

Several runs share a world. Each has its own jobs, but owners, tenures and terms are older than it:
so the past of those tables goes before what a run itself saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from faults.decoding import commits
from faults.history import Commit
from faults.world.postgres import SLOT, Server

OF_THE_CLUSTER = frozenset({"cluster", "term", "tenures", "shards", "shard_log", "incarnations"})
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
        self._past: list[Commit] = []
        self._seen: set[tuple[str, int]] = set()

    def absorb(self, *, with_past: bool = False) -> list[Commit]:
        """Read what was committed since the last time; with the cluster's past before it.

        A server that crashed may hand out again what was read before: that is left out.
        """
        fresh = list(self._unseen(commits(self._server.sql(_CHANGES, SLOT), without=LARGE)))
        answer = [*self._past, *fresh] if with_past else fresh
        for commit in fresh:
            if kept := tuple(c for c in commit.changes if c.table in OF_THE_CLUSTER):
                self._past.append(replace(commit, changes=kept))
        return answer

    def _unseen(self, read: Iterable[Commit]) -> Iterator[Commit]:
        for commit in read:
            mark = (commit.lsn, commit.xid)
            if mark not in self._seen:
                self._seen.add(mark)
                yield commit
