"""PgQueuer on asyncpg: one manager on one connection, autovacuum as its page on tuning has it.

That page wants larger batches for short jobs and names no best one: a thousand, as many as schedd's
worker has slots, was the fastest of 10, 25, 100, 300 and 1,000. It keeps a log of what was done,
logged and durable, which is its default.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from bench.peers import pins
from bench.peers.peer import Peer, Site
from bench.peers.stores import Postgres, durable_postgres

_SETTINGS: Final = {"batch_size": 10}
_BATCHED: Final = {"batch_size": 1_000}


class PgQueuer(Peer):
    """Batches of 10, its default."""

    name = "pgqueuer"
    environment = pins.PGQUEUER
    settings = _SETTINGS

    def store(self) -> AbstractContextManager[Postgres]:
        """PostgreSQL."""
        return durable_postgres()

    def schema(self, site: Site) -> Sequence[Sequence[object]]:
        """With its settings of autovacuum."""
        return [("pgq", "--pg-dsn", site.store.url, command) for command in ("install", "autovac")]

    def enqueue(self, site: Site, jobs: int) -> None:
        """A thousand a call."""
        site.run("python", "pgqueuer_jobs.py", jobs)

    def worker(self, site: Site) -> Sequence[str]:
        """Its command."""
        options = ("--batch-size", self.settings["batch_size"])
        return site.argv("pgq", "run", *options, "pgqueuer_jobs:worker")

    def completed(self, site: Site, jobs: int) -> int:
        """By its log."""
        return site.store.count(
            "SELECT count(DISTINCT job_id) FROM pgqueuer_log WHERE status = 'successful'"
        )


class PgQueuerBatched(PgQueuer):
    """Batches of a thousand."""

    name = "pgqueuer-batched"
    settings = _BATCHED
    share = 2.0


class PgQueuerBatchedTwo(PgQueuerBatched):
    """In two processes."""

    name = "pgqueuer-batched-2"
    processes = 2
