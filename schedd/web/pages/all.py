"""The list of all pages."""

from __future__ import annotations

from typing import Final

from schedd.web.pages.cluster import cluster, overview, workers
from schedd.web.pages.jobs import cron, forecast, job, jobs, new_job
from schedd.web.pages.page import Page
from schedd.web.pages.runs import dead_letters, run, runs

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
