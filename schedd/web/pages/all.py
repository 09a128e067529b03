"""Every page there is."""

from __future__ import annotations

from typing import Final

from schedd.web.pages import (
    cluster,
    cron,
    dead_letters,
    forecast,
    job,
    jobs,
    new_job,
    overview,
    run,
    runs,
    workers,
)
from schedd.web.pages.page import Page

PAGES: Final[tuple[Page, ...]] = (
    overview.PAGE,
    jobs.PAGE,
    job.PAGE,
    new_job.PAGE,
    runs.PAGE,
    run.PAGE,
    workers.PAGE,
    cluster.PAGE,
    cluster.DOCTOR,
    dead_letters.PAGE,
    cron.PAGE,
    forecast.PAGE,
)
