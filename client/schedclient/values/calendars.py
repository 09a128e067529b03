"""Calendars, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from schedclient.values.base import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class DateRange(Value):
    """Days, both inclusive. The first is `message`'s `from`."""

    to: str

    @property
    def first(self) -> str:
        """The first day."""
        return str(getattr(self.message, "from"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar(Value):
    """Days and times that jobs exclude; one version of it."""

    namespace: str
    name: str
    version: int
    dates: tuple[str, ...]
    weekdays: tuple[str, ...]
    ranges: tuple[DateRange, ...]
    cron: tuple[str, ...]
    time_zone: str | None
    roll: str | None
    jobs: int
    jobs_behind: int
    updated_at: datetime | None
    updated_by: str | None
