"""Jobs of APScheduler 3: `enqueue N` stores N jobs that are already due, `work` runs them."""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import UTC, datetime
from threading import Event

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler


def noop(number: int) -> None:
    """Append one line."""
    from appending import append

    append(number)


def scheduler() -> BackgroundScheduler:
    """Return a scheduler with its job store on PostgreSQL. The scheduler also runs late jobs."""
    settings = json.loads(os.environ["PEERS_SETTINGS"])
    url = os.environ["PEERS_URL"].replace("postgresql:", "postgresql+psycopg2:")
    return BackgroundScheduler(
        jobstores={"default": SQLAlchemyJobStore(url=url)},
        executors={"default": ThreadPoolExecutor(settings["threads"])},
        job_defaults={"misfire_grace_time": None},
        timezone=UTC,
    )


def enqueue(count: int) -> None:
    """Store each job by a separate call, because APScheduler has no bulk call."""
    made = scheduler()
    made.start(paused=True)
    due = datetime.now(UTC)
    for number in range(count):
        made.add_job("apscheduler_jobs:noop", "date", run_date=due, args=[number], id=str(number))
    made.shutdown()


def work() -> None:
    """Run jobs until SIGTERM."""
    ended = Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    made = scheduler()
    made.start()
    ended.wait()
    made.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "enqueue":
        enqueue(int(sys.argv[2]))
    else:
        work()
