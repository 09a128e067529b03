"""Changes of all runs of a job or of a namespace, as they are watched."""

from collections.abc import AsyncGenerator
from typing import Protocol

from schedd.core.runs.change_stream import Cursor, News, Scope


class RunFeed(Protocol):
    """All runs of a scope, as they change."""

    def follow(self, scope: Scope, after: Cursor | None) -> AsyncGenerator[News, None]:
        """That it stands; what changed since `after`, without it the runs that haven't ended, as
        they stand; then each change, for ever. Raises Unavailable.
        """
        ...
