"""Celery on Redis: a process for each core, 128 messages ahead for each, as its page on optimising
has it for many short tasks.

A message is acknowledged before its task runs, which is the default: what a worker dies with is
lost. Without results nothing is written when a task has run; its queue then says only that nothing
waits and nothing is unacknowledged.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from bench.peers import pins
from bench.peers.peer import Peer, Site
from bench.peers.stores import Redis, durable_redis

_SETTINGS: Final[dict[str, Any]] = {
    "worker_concurrency": os.cpu_count(),
    "worker_prefetch_multiplier": 128,
    "task_ignore_result": True,
}
_RESULTS: Final = {**_SETTINGS, "task_ignore_result": False}
_ALONE: Final = ("--without-gossip", "--without-mingle", "--without-heartbeat")
"""Without what only several workers need."""


class Celery(Peer):
    """Without results, on a Redis that syncs each second."""

    name = "celery"
    environment = pins.CELERY
    settings = _SETTINGS
    share = 0.25
    fsync = "everysec"

    def store(self) -> AbstractContextManager[Redis]:
        """Redis, its broker, and where its results go."""
        return durable_redis(self.fsync)

    def enqueue(self, site: Site, jobs: int) -> None:
        """Enqueue jobs one by one, over one connection: Celery has no call for many."""
        site.run("python", "celery_jobs.py", jobs)

    def worker(self, site: Site) -> Sequence[str]:
        """Its command."""
        quiet = ("--loglevel", "WARNING")
        return site.argv("celery", "--app", "celery_jobs", "worker", *quiet, *_ALONE)

    def completed(self, site: Site, jobs: int) -> int:
        """Count the jobs that neither wait nor are unacknowledged."""
        return jobs - site.store.count("LLEN celery") - site.store.count("HLEN unacked")


class CeleryResults(Celery):
    """With results in the same Redis."""

    name = "celery-results"
    settings = _RESULTS

    def completed(self, site: Site, jobs: int) -> int:
        """Its results."""
        return site.store.count("KEYS celery-task-meta-*")


class CeleryResultsAlways(CeleryResults):
    """On one that syncs before it answers."""

    name = "celery-results-always"
    fsync = "always"
