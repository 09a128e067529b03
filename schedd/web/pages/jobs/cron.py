"""A cron expression, explained: in words, its next ten instants, and what the clocks do to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from schedd.api.errors import InvalidArgument
from schedd.core.schedule.zones import zone as zoned
from schedd.web.pages.page import Page, PageRequest, Shown
from schedd.web.rest.field_names import in_words, rename
from schedproto.v1 import job_service_pb2 as wire

FIRST: Final = "30 9 * * MON-FRI"
"""What is shown before anything is typed."""

PRESETS: Final = (
    ("*/5 * * * *", "every five minutes"),
    ("0 * * * *", "hourly"),
    ("H 2 * * *", "nightly, at a minute of its own"),
    ("30 9 * * MON-FRI", "on working days"),
    ("0 8 1 * *", "on the first of the month"),
    ("0 18 L * *", "on the last of the month"),
    ("0 12 * * MON#1", "on the first Monday"),
    ("*/10 * * * * *", "every ten seconds"),
)


@dataclass(frozen=True, slots=True)
class CronSeen:
    """An expression with what it means, or what is wrong with it."""

    expression: str
    zone: str
    told: wire.ExplainCronResponse | None = None
    instants: Sequence[datetime] = ()
    """The next ones, by the clocks of the zone."""
    problem: str = ""
    hint: str = ""
    presets: tuple[tuple[str, str], ...] = PRESETS


async def _read(asked: PageRequest) -> Shown:
    expression = asked.query.get("expression", FIRST).strip()
    zone = (asked.query.get("timeZone") or asked.query.get("zone", "UTC")).strip()
    job = asked.query.get("job", "")
    request = wire.ExplainCronRequest(
        namespace=asked.namespace, expression=expression, time_zone=zone, job=job
    )
    try:
        told = await asked.call("JobService.ExplainCron", request, wire.ExplainCronResponse)
    except InvalidArgument as error:
        rename(error, in_words)
        return Shown("Cron", CronSeen(expression, zone, problem=error.message, hint=error.remedy))
    clock = zoned(told.time_zone).info
    instants = [at.ToDatetime(UTC).astimezone(clock) for at in told.instants]
    return Shown("Cron", CronSeen(expression, zone, told, instants))


ASKS: Final = ("expression", "timeZone", "zone", "job")
"""`timeZone` is REST's name; addresses from before have `zone`."""

PAGE: Final = Page("/cron", "Cron", "cron", _read, asks=ASKS, every=None, by_turns=False)
