"""Count the runs that were missed in the last day.

    the newest runs, as many as one list reads ──▶ MISSED ──▶ recorded within LATELY ──▶ MissedRuns

Missed runs have no index (docs/decisions, "Dashboard"). If a day has more runs than one list reads,
the text says how far back the search went.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from schedd.api import paging
from schedd.web import formatting
from schedd.web.pages.page import PageRequest
from schedd.web.pages.rows import moment
from schedproto.v1 import common_pb2, run_pb2
from schedproto.v1 import run_service_pb2 as wire

LATELY: Final = timedelta(days=1)
"""How long a missed run is reported."""
MOST: Final = 100
"""The greatest count; with more, it is a lower bound."""
GOOD_FOR: Final = 10.0
"""Seconds that a result is cached: it is the most expensive read of the overview."""


@dataclass(frozen=True, slots=True)
class MissedRuns:
    """When runs were recorded as missed, MOST at most; `reached`: end of the search, None: all
    runs.
    """

    runs: tuple[datetime, ...] = ()
    reached: datetime | None = None

    def summary(self, now: datetime) -> str:
        """Return the count in words; empty if none is known. Pure."""
        lately = sum(at > now - LATELY for at in self.runs)
        if not lately:
            return ""
        number = "a run was" if lately == 1 else f"{lately} runs were"
        if lately >= MOST:
            return f"{lately} runs or more were missed in the last day"
        if self.reached is None or self.reached <= now - LATELY:
            return f"{number} missed in the last day"
        since = formatting.clock(self.reached, now)
        return f"{number} missed since {since}; older runs weren't searched"


NONE_MISSED: Final = MissedRuns()


async def missed(asked: PageRequest) -> MissedRuns:
    """Return the missed runs of the namespace, cached for GOOD_FOR. Raises Unavailable."""

    async def look() -> MissedRuns:
        listed = await asked.call("RunService.ListRuns", request, wire.ListRunsResponse)
        return MissedRuns(tuple(_recorded_at(listed.runs)), paging.reached(listed.next_page_token))

    request = wire.ListRunsRequest(
        namespace=asked.namespace, states=[common_pb2.RUN_STATE_MISSED], page_size=MOST
    )
    return await asked.recent.of(("missed", asked.namespace), GOOD_FOR, look)


def _recorded_at(runs: Iterable[run_pb2.Run]) -> Iterable[datetime]:
    for run in runs:
        yield moment(run, "finished_at") or formatting.instant(run.due_at)
