"""Runs that were missed in the last day, as far back as is looked.

    the newest runs, as many as one list looks at ──▶ those MISSED ──▶ told within LATELY ──▶ Missed

No index leads to them (docs/decisions, "Dashboard"), so with more runs in a day than are
looked at it is said how far back that was.
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
"""How long it is told of a run that was missed."""
MOST: Final = 100
"""So many or more."""
GOOD_FOR: Final = 10.0
"""Seconds for which a look is: it costs more than all else on the overview."""


@dataclass(frozen=True, slots=True)
class MissedRuns:
    """`runs` of MOST at most, told when; `reached`: how far back was looked, None: to the end."""

    runs: tuple[datetime, ...] = ()
    reached: datetime | None = None

    def told(self, now: datetime) -> str:
        """In words; empty: none, as far as is known. Pure."""
        lately = sum(at > now - LATELY for at in self.runs)
        if not lately:
            return ""
        number = "a run was" if lately == 1 else f"{lately} runs were"
        if lately >= MOST:
            return f"{lately} runs or more were missed in the last day"
        if self.reached is None or self.reached <= now - LATELY:
            return f"{number} missed in the last day"
        since = formatting.clock(self.reached, now)
        return f"{number} missed since {since}; no further back was looked"


NONE_MISSED: Final = MissedRuns()


async def missed(asked: PageRequest) -> MissedRuns:
    """Those of the namespace, by a look that is GOOD_FOR so long. Raises Unavailable."""

    async def look() -> MissedRuns:
        listed = await asked.call("RunService.ListRuns", request, wire.ListRunsResponse)
        return MissedRuns(tuple(_told_at(listed.runs)), paging.reached(listed.next_page_token))

    request = wire.ListRunsRequest(
        namespace=asked.namespace, states=[common_pb2.RUN_STATE_MISSED], page_size=MOST
    )
    return await asked.recent.of(("missed", asked.namespace), GOOD_FOR, look)


def _told_at(runs: Iterable[run_pb2.Run]) -> Iterable[datetime]:
    for run in runs:
        yield moment(run, "finished_at") or formatting.instant(run.due_at)
