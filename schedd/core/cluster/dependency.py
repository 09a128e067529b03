"""Failures of PostgreSQL or etcd as a member sees them: cause, start time and remedy; why a
member isn't ready.
"""

from datetime import datetime
from enum import StrEnum

from schedkit.records import dataclass


class Dependency(StrEnum):
    """A service that every member depends on."""

    POSTGRESQL = "postgresql"
    ETCD = "etcd"


@dataclass(frozen=True, slots=True)
class DependencyFailure:
    """`reason`: a snake_case word for metrics. `since`: UTC, by the member's wall clock."""

    dependency: Dependency
    reason: str
    cause: str
    remedy: str
    since: datetime

    def __str__(self) -> str:
        return f"{self.cause}, since {self.since:%Y-%m-%dT%H:%M:%SZ}: {self.remedy}"


class Unready(StrEnum):
    LEAVING = "leaving"
    DUPLICATE_NAME = "duplicate_name"
    ANOTHER_CLUSTER = "another_cluster"
    NO_TENURE = "no_tenure"
    UNTRUSTED = "untrusted"
    ETCD = "etcd"
    DATABASE = "database"
    NO_LEADER = "no_leader"
