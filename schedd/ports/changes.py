"""Changes of all runs of a job or of a namespace: how they are read, and how they are watched."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from schedd.core.ids import JobId, RunId
from schedd.core.runs.change_stream import Change, Cursor, MissedChanges, News, Scope


class ChangeStore(Protocol):
    """Looks at the rows of runs for what has changed."""

    async def now(self) -> Cursor:
        """The present moment."""
        ...

    async def since(self, cursor: Cursor, jobs: Sequence[JobId] | None) -> MissedChanges:
        """Return the changes since then, of these jobs or of all."""
        ...

    async def unended(self, scope: Scope, most: int) -> list[RunId]:
        """The newest that haven't ended, the oldest of them first."""
        ...

    async def read(self, run_ids: Sequence[RunId]) -> list[Change]:
        """Return the current state of those that exist, in this order."""
        ...


class RunFeed(Protocol):
    """All runs of a scope, as they change."""

    def follow(self, scope: Scope, after: Cursor | None) -> AsyncGenerator[News, None]:
        """That it stands; what changed since `after`, without it the runs that haven't ended, as
        they stand; then each change, for ever. Raises Unavailable.
        """
        ...
