"""The identity of this worker in the cluster."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime

from schedkit.records import dataclass, replace
from workerd.core.ids import Incarnation


def fresh_incarnation() -> Incarnation:
    return Incarnation(str(uuid.uuid4()))


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The contents of every hello. A new incarnation changes only the incarnation."""

    worker: str
    spool_id: str
    version: str
    host: str
    slots: int
    labels: Mapping[str, str]
    handlers: Sequence[str]
    actions: Sequence[str]
    started_at: datetime
    incarnation: Incarnation = field(default_factory=fresh_incarnation)

    def renewed(self) -> WorkerIdentity:
        """Return the same worker with a new incarnation."""
        return replace(self, incarnation=fresh_incarnation())
