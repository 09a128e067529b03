"""Calendars, and which jobs use them."""

import builtins
from collections.abc import Callable, Collection
from typing import Protocol

from schedd.core.ids import JobId
from schedd.core.runs.model import AuditEntry
from schedd.core.runs.records import CalendarRecord, PinnedCalendar


class CalendarStore(Protocol):
    """Reads and writes of user calls on calendars. Jobs are pinned to versions of them with their
    definitions (`UserStore`).
    """

    async def current(self, namespace: str, names: Collection[str]) -> tuple[PinnedCalendar, ...]:
        """The newest version of those of these that there are, by name."""
        ...

    async def apply(
        self,
        namespace: str,
        name: str,
        spec: bytes,
        actor: str,
        audit: AuditEntry,
        noted: Callable[[CalendarRecord | None], tuple[str, str]] | None = None,
    ) -> CalendarRecord:
        """Write its next version, unless the newest one says the same. `noted`: what the audit has
        of it, before and after, by the version before.
        """
        ...

    async def get(self, namespace: str, name: str, version: int = 0) -> CalendarRecord | None:
        """The newest version; or the one of this number, also of a deleted calendar."""
        ...

    async def list(self, namespace: str, after: str, limit: int) -> list[CalendarRecord]:
        """By name, past `after`."""
        ...

    async def behind(
        self, namespace: str, name: str, version: int, limit: int
    ) -> builtins.list[JobId]:
        """Jobs that are computed with an earlier version."""
        ...

    async def delete(
        self,
        namespace: str,
        name: str,
        audit: AuditEntry,
        most: int,
        noted: Callable[[CalendarRecord], str] | None = None,
    ) -> bool | builtins.list[str]:
        """False: there is none. Names, `most` of them: these jobs use it, and it stays. `noted`:
        what the audit has of what went.
        """
        ...
