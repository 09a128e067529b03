"""The clock by which due times are judged."""

from datetime import datetime
from typing import Protocol


class ClusterClock(Protocol):
    """Cluster time: the member's monotonic clock mapped onto the database's (docs/glossary.md)."""

    def now(self) -> datetime: ...
