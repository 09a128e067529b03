"""A cron expression, explained: in words, its next ten instants, and what the clocks do to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schedd.core.cron import CronError, Explanation, explain
from schedd.web.pages.page import Asked, Page, Shown
from schedkit.clock import utcnow

NEXT: Final = 10
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
    told: Explanation | None
    problem: str
    hint: str
    presets: tuple[tuple[str, str], ...] = PRESETS


async def _read(asked: Asked) -> Shown:
    expression = asked.query.get("expression", FIRST).strip()
    zone = asked.query.get("zone", "UTC").strip()
    told, problem, hint = None, "", ""
    try:
        told = explain(
            expression, zone, after=utcnow(), count=NEXT, seed=asked.query.get("job", "")
        )
    except CronError as error:
        problem, hint = f"{error.field}: {error.problem}", error.hint
    return Shown("Cron", CronSeen(expression, zone, told, problem, hint))


PAGE: Final = Page("/cron", "Cron", "cron", _read, asks=("expression", "zone", "job"), every=None)
