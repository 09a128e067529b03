"""Pools, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from schedclient.values.base import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Value):
    """Jobs that share a `limit` of runs in progress (0: unlimited), a `rate` of starts as `"100/m"`
    (None: unlimited), or both. `recent` started within the last period of the rate.
    """

    namespace: str
    name: str
    limit: int
    rate: str | None
    version: int
    paused: bool
    pause_note: str | None
    paused_by: str | None
    jobs: int
    running: int
    waiting: int
    recent: int
    updated_at: datetime | None
    updated_by: str | None
