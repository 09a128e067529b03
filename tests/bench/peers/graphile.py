"""graphile-worker, as it is without a word from its user, and as its own perfTest has it.

Its page on performance and perfTest say: 24 jobs at once, a pool of 25, a local queue of 500,
refetched after 10 ms, completions and failures batched without delay. perfTest has four
processes, on more cores than two; so there is one with one, one with two, one with four. A job that
is done is deleted: there is no history.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from bench.peers import pins
from bench.peers.peer import Peer, Site
from bench.peers.stores import Postgres, durable_postgres

_QUIET: Final = {"NO_LOG_SUCCESS": "1"}
"""As perfTest has it: no line for each job that is done."""
_BATCHED: Final = {
    "concurrentJobs": 24,
    "maxPoolSize": 25,
    "localQueue": {"size": 500, "refetchDelay": {"durationMs": 10}},
    "completeJobBatchDelay": 0,
    "failJobBatchDelay": 0,
}


class Graphile(Peer):
    """Its defaults: one job at a time, each fetched and completed alone."""

    name = "graphile-worker"
    environment = pins.GRAPHILE
    variables = _QUIET
    share = 0.5

    def store(self) -> AbstractContextManager[Postgres]:
        """PostgreSQL."""
        return durable_postgres()

    def schema(self, site: Site) -> Sequence[Sequence[object]]:
        """By its command."""
        return [("graphile-worker", *self._options(site), "--schema-only")]

    def enqueue(self, site: Site, jobs: int) -> None:
        """All by one call of its SQL function for many."""
        site.store.count(
            "SELECT count(*) FROM graphile_worker.add_jobs((SELECT array_agg(("
            "'noop', json_build_object('number', n), NULL, now(), NULL, NULL, NULL, NULL"
            f")::graphile_worker.job_spec) FROM generate_series(0, {jobs - 1}) n))"
        )

    def worker(self, site: Site) -> Sequence[str]:
        """Its command."""
        return site.argv("graphile-worker", *self._options(site))

    def completed(self, site: Site, jobs: int) -> int:
        """Count the jobs that are no longer in the store."""
        return jobs - site.store.count("SELECT count(*) FROM graphile_worker.jobs")

    def _options(self, site: Site) -> Sequence[str]:
        return ("--config", "graphile.config.mjs", "--connection", site.store.url)


class GraphileBatched(Graphile):
    """Its batched mode, in one process."""

    name = "graphile-worker-batched"
    settings = _BATCHED
    share = 5.0


class GraphileBatchedTwo(GraphileBatched):
    """In two."""

    name = "graphile-worker-batched-2"
    processes = 2


class GraphileBatchedFour(GraphileBatched):
    """In four, as perfTest has it."""

    name = "graphile-worker-batched-4"
    processes = 4
