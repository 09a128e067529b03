"""Why PostgreSQL or etcd doesn't serve a member: the cause, since when, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Dependency(StrEnum):
    """What every member depends on."""

    POSTGRESQL = "postgresql"
    ETCD = "etcd"


@dataclass(frozen=True, slots=True)
class DependencyFailure:
    """`reason` is a snake_case word for metrics; `since` is in UTC, by the member's wall clock."""

    dependency: Dependency
    reason: str
    cause: str
    remedy: str
    since: datetime

    def __str__(self) -> str:
        return f"{self.cause}, since {self.since:%Y-%m-%dT%H:%M:%SZ}: {self.remedy}"
