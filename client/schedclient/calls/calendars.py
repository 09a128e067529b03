"""Calls on calendars: named days and times that jobs exclude."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TypedDict, Unpack

from google.protobuf.message import Message

from schedclient.calls import paging
from schedclient.calls.naming import calendar_of
from schedclient.calls.specs import Form
from schedclient.errors import from_form
from schedclient.transport import methods
from schedclient.transport.transport import Transport
from schedclient.values.calendars import Calendar
from schedclient.values.reading import value_of
from schedkit.protojson import FormErrors, from_json
from schedproto.v1 import calendar_service_pb2 as wire


class CalendarSpec(TypedDict, total=False):
    """The exclusions of a calendar. `ranges`: each `{"from": "2026-12-24", "to": "2027-01-02"}`."""

    dates: Sequence[str]
    weekdays: Sequence[str]
    ranges: Sequence[Form]
    cron: Sequence[str]
    time_zone: str
    roll: str


class Calendars:
    """`client.calendars`. Every call raises `ApiError`. `deadline` is in seconds, and `calendar` a
    name or a `Calendar`.
    """

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport = transport
        self._call = transport.call
        self._namespace = namespace

    def in_namespace(self, namespace: str) -> Calendars:
        """Return the same calls for calendars of another namespace."""
        return Calendars(self._transport, namespace)

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
            calendar=_message(fields if spec is None else spec, name, self._namespace),
            validate_only=validate_only,
        )
        return value_of(Calendar, await self._call(methods.APPLY_CALENDAR, request, deadline))

    async def get(
        self, calendar: Calendar | str, *, version: int = 0, deadline: float | None = None
    ) -> Calendar:
        """Return a calendar, or an earlier `version`, also of a deleted calendar."""
        namespace, name = calendar_of(calendar, self._namespace)
        request = wire.GetCalendarRequest(namespace=namespace, calendar=name, version=version)
        return value_of(Calendar, await self._call(methods.GET_CALENDAR, request, deadline))

    async def list(
        self, *, limit: int | None = None, deadline: float | None = None
    ) -> AsyncIterator[Calendar]:
        """Yield calendars, by name; `deadline` holds for each page."""

        async def read(size: int, token: str) -> tuple[Sequence[Message], str]:
            request = wire.ListCalendarsRequest(
                namespace=self._namespace, page_size=size, page_token=token
            )
            page = await self._call(methods.LIST_CALENDARS, request, deadline)
            return page.calendars, page.next_page_token

        async for calendar in paging.paged(Calendar, read, limit):
            yield calendar

    async def delete(self, calendar: Calendar | str, *, deadline: float | None = None) -> None:
        """Delete a calendar. While jobs use it: `FailedPrecondition` with their names."""
        namespace, name = calendar_of(calendar, self._namespace)
        request = wire.DeleteCalendarRequest(namespace=namespace, calendar=name)
        await self._call(methods.DELETE_CALENDAR, request, deadline)


def _message(spec: Form | wire.Calendar, name: str, namespace: str) -> wire.Calendar:
    calendar = wire.Calendar()
    if isinstance(spec, Message):
        calendar.CopyFrom(spec)
    else:
        try:
            calendar = from_json(spec, wire.Calendar)
        except FormErrors as error:
            raise from_form(error) from None
    calendar.name = name or calendar.name
    calendar.namespace = calendar.namespace or namespace
    return calendar
