"""BullMQ: a worker of 100 jobs at once, which is what its own benchmark has.

Its page on production wants `appendfsync everysec`: the last second of it may be lost with the
machine. `always` is what the others on PostgreSQL do. What is done stays in Redis, as by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from bench.peers import pins
from bench.peers.peer import Peer, Site
from bench.peers.stores import Redis, durable_redis

_SETTINGS: Final = {"concurrency": 100}


class BullMQ(Peer):
    """On a Redis that syncs each second."""

    name = "bullmq"
    environment = pins.BULLMQ
    settings = _SETTINGS
    fsync = "everysec"

    def store(self) -> AbstractContextManager[Redis]:
        """Redis."""
        return durable_redis(self.fsync)

    def enqueue(self, site: Site, jobs: int) -> None:
        """A thousand a call."""
        site.run("node", "bullmq_jobs.cjs", "enqueue", jobs)

    def worker(self, site: Site) -> Sequence[str]:
        """A program, for it has no command."""
        return site.argv("node", "bullmq_jobs.cjs", "work")

    def completed(self, site: Site, jobs: int) -> int:
        """Its set of completed jobs."""
        return site.store.count("ZCARD bull:noop:completed")


class BullMQAlways(BullMQ):
    """On one that syncs before it answers."""

    name = "bullmq-always"
    fsync = "always"
