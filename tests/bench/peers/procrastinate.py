"""Procrastinate: its worker with so many jobs at once, each fetched and finished alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from bench.peers import pins
from bench.peers.peer import Peer, Site
from bench.peers.stores import Postgres, durable_postgres

_SETTINGS: Final = {"concurrency": 10}


class Procrastinate(Peer):
    """Procrastinate; finished jobs stay in its table, as by default."""

    name = "procrastinate"
    environment = pins.PROCRASTINATE
    settings = _SETTINGS
    share = 0.1

    def store(self) -> AbstractContextManager[Postgres]:
        """PostgreSQL."""
        return durable_postgres()

    def schema(self, site: Site) -> Sequence[Sequence[object]]:
        """By its command."""
        return [("procrastinate", "--app", "procrastinate_jobs.app", "schema", "--apply")]

    def enqueue(self, site: Site, jobs: int) -> None:
        """A thousand a call."""
        site.run("python", "procrastinate_jobs.py", jobs)

    def worker(self, site: Site) -> Sequence[str]:
        """Its command."""
        options = ("--concurrency", self.settings["concurrency"])
        app = ("--app", "procrastinate_jobs.app", "--log-level", "warning")
        return site.argv("procrastinate", *app, "worker", *options)

    def completed(self, site: Site, jobs: int) -> int:
        """By its table."""
        return site.store.count("SELECT count(*) FROM procrastinate_jobs WHERE status='succeeded'")
