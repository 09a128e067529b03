"""The page that explains a cron expression: words, next ten times, warnings about clock changes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from schedd.api.errors import InvalidArgumentError
from schedd.core.schedule.zones import zone as zoned
from schedd.web.pages.page import Page, PageRequest, Shown
from schedd.web.rest.problems import in_words, rename
from schedkit.records import dataclass
from schedproto.v1 import job_service_pb2 as wire

FIRST: Final = "30 9 * * MON-FRI"
"""The default expression."""

PRESETS: Final = (
    ("*/5 * * * *", "every five minutes"),
    ("0 * * * *", "hourly"),
    ("H 2 * * *", "nightly, at a minute hashed from its name"),
    ("30 9 * * MON-FRI", "on working days"),
    ("0 8 1 * *", "on the first of the month"),
    ("0 18 L * *", "on the last of the month"),
    ("0 12 * * MON#1", "on the first Monday"),
    ("*/10 * * * * *", "every ten seconds"),
)


@dataclass(frozen=True, slots=True)
class CronSeen:
    expression: str
    zone: str
    explained: wire.ExplainCronResponse | None = None
    instants: Sequence[datetime] = ()
    """The next scheduled times, in the time zone."""
    problem: str = ""
    hint: str = ""
    presets: tuple[tuple[str, str], ...] = PRESETS


async def _read(asked: PageRequest) -> Shown:
    expression = asked.query.get("expression", FIRST).strip()
    zone = (asked.query.get("timeZone") or "UTC").strip()
    job = asked.query.get("job", "")
    request = wire.ExplainCronRequest(
        namespace=asked.namespace, expression=expression, time_zone=zone, job=job
    )
    try:
        explained = await asked.call(request, wire.ExplainCronResponse)
    except InvalidArgumentError as error:
        rename(error, in_words)
        return Shown("Cron", CronSeen(expression, zone, problem=error.message, hint=error.remedy))
    clock = zoned(explained.time_zone).info
    instants = [at.ToDatetime(UTC).astimezone(clock) for at in explained.instants]
    return Shown("Cron", CronSeen(expression, zone, explained, instants))


ASKS: Final = ("expression", "timeZone", "job")

PAGE: Final = Page("/cron", "Cron", "cron", _read, asks=ASKS, every=None, by_turns=False)
