"""Clock that decides which timers and runs are due."""

from datetime import datetime
from typing import Protocol


class ClusterClock(Protocol):
    """Cluster time: the member's monotonic clock mapped onto the database's (docs/glossary.md)."""

    def now(self) -> datetime: ...
