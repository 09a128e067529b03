"""APScheduler 3 with its job store on PostgreSQL: a herd, for it has no queue.

All jobs are due once, already; none is missed however late it is (`misfire_grace_time` None), and
20 threads run them, as its user guide has it. A job is deleted as it is handed to a thread, so
what a process dies with is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from bench.peers import pins
from bench.peers.peer import Peer, Site
from bench.peers.stores import Postgres, durable_postgres

_SETTINGS: Final = {"threads": 20, "misfire_grace_time": None}


class APScheduler(Peer):
    """A background scheduler."""

    name = "apscheduler"
    environment = pins.APSCHEDULER
    settings = _SETTINGS
    share = 0.1

    def store(self) -> AbstractContextManager[Postgres]:
        """PostgreSQL."""
        return durable_postgres()

    def enqueue(self, site: Site, jobs: int) -> None:
        """Enqueue jobs one by one: APScheduler has no call for many."""
        site.run("python", "apscheduler_jobs.py", "enqueue", jobs)

    def worker(self, site: Site) -> Sequence[str]:
        """A program, for it has no command."""
        return site.argv("python", "apscheduler_jobs.py", "work")

    def completed(self, site: Site, jobs: int) -> int:
        """Count the jobs that are no longer in the store."""
        return jobs - site.store.count("SELECT count(*) FROM apscheduler_jobs")
