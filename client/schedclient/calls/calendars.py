"""Calls on calendars: named days and times that jobs exclude."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TypedDict, Unpack

from schedclient.calls.base import NamespacedCalls, place_of
from schedclient.calls.specs import Form, described
from schedclient.values.jobs import Calendar
from schedproto.v1 import calendar_service_pb2 as wire


class CalendarSpec(TypedDict, total=False):
    """The exclusions of a calendar. `ranges`: each `{"from": "2026-12-24", "to": "2027-01-02"}`."""

    dates: Sequence[str]
    weekdays: Sequence[str]
    ranges: Sequence[Form]
    cron: Sequence[str]
    time_zone: str
    roll: str


class Calendars(NamespacedCalls):
    """`client.calendars`. Every call raises `ApiError`. `deadline` is in seconds, and `calendar` a
    name or a `Calendar`.
    """

    async def apply(
        self,
        /,
        name: str,
        spec: Form | wire.Calendar | None = None,
        *,
        validate_only: bool = False,
        deadline: float | None = None,
        **fields: Unpack[CalendarSpec],
    ) -> Calendar:
        """Create a calendar, or write its next version. When this returns, its jobs use that
        version.
        """
        request = wire.ApplyCalendarRequest(
            calendar=described(
                fields if spec is None else spec,
                wire.Calendar,
                name=name,
                namespace=self._namespace,
            ),
            validate_only=validate_only,
        )
        return await self._one(Calendar, request, deadline)

    async def get(
        self, calendar: Calendar | str, *, version: int = 0, deadline: float | None = None
    ) -> Calendar:
        """Return a calendar, or an earlier `version`, also of a deleted calendar."""
        namespace, name = place_of(calendar, Calendar, self._namespace)
        request = wire.GetCalendarRequest(namespace=namespace, calendar=name, version=version)
        return await self._one(Calendar, request, deadline)

    def list(
        self, *, limit: int | None = None, deadline: float | None = None
    ) -> AsyncIterator[Calendar]:
        """Yield calendars, by name; `deadline` holds for each page."""
        request = wire.ListCalendarsRequest(namespace=self._namespace)
        return self._pages(Calendar, request, limit, deadline)

    async def delete(self, calendar: Calendar | str, *, deadline: float | None = None) -> None:
        """Delete a calendar. While jobs use it: `FailedPrecondition` with their names."""
        namespace, name = place_of(calendar, Calendar, self._namespace)
        await self._call(wire.DeleteCalendarRequest(namespace=namespace, calendar=name), deadline)
