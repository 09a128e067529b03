"""The overview page: the state of the cluster, problems first.

While the database is unavailable, it shows the last data, and the problems that the member itself
knows.
"""

from typing import Final

from schedd.web.pages.cluster.overview_facts import glance
from schedd.web.pages.cluster.overview_queries import Stored, run_queries
from schedd.web.pages.page import Page, PageRequest, Shown
from schedkit.clock import utcnow

EVERY: Final = 0.5
"""Seconds between two reads, for any number of readers."""


async def _read(asked: PageRequest) -> Shown:
    return _shown(asked, await run_queries(asked), away=False)


def _without(asked: PageRequest, kept: object) -> Shown:
    return _shown(asked, kept if isinstance(kept, Stored) else Stored(), away=True)


def _shown(asked: PageRequest, stored: Stored, *, away: bool) -> Shown:
    cluster = asked.services.cluster
    seen = glance(
        stored,
        cluster.view(),
        cluster.tenure,
        trusted=cluster.trusted(),
        duplicate=cluster.duplicate,
        failures=asked.services.failures(),
        away=away,
        now=utcnow(),
    )
    return Shown(f"Overview of {seen.here}" if seen.here else "Overview", seen, kept=stored)


PAGE: Final = Page(
    "/", "Overview", "overview", _read, every=EVERY, without=_without, tells_troubles=True
)
