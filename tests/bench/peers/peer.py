"""Base class of a peer, and one drain of it.

    class Toy(Peer):
        name = "toy"
        environment = pins.TOY
        settings = {"concurrency": 10}
        store = staticmethod(durable_postgres)

        def enqueue(self, site, jobs): site.run("python", "toy_jobs.py", jobs)
        def worker(self, site): return site.argv("toy", "work", "--concurrency", 10)
        def completed(self, site, jobs): return site.store.count("SELECT count(*) FROM done")

All that a peer starts has the drain's own folder as its working directory, and what still lives
there afterwards is ended by its pid.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bench.peers.environments import Environment, Installed
from bench.peers.errors import Failed
from bench.peers.starts import Verdict, judge
from bench.peers.stores import Store
from bench.peers.watching import Watched, watch
from schedctl.dev.servers.processes import end, living_in, spawn, tail

PROGRAMS: Final = Path(__file__).parent / "programs"
FAREWELL: Final = 10.0
"""Seconds for a worker to end after SIGTERM."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Figures of one drain: from the starts, from the store, and the time it took."""

    jobs: int
    verdict: Verdict
    watched: Watched
    enqueueing: float
    versions: Mapping[str, str]
    store: Mapping[str, str]

    @property
    def seconds(self) -> float | None:
        """From the first start to the store's knowledge of all; None when it came to no end."""
        first, ended = self.verdict.first, self.watched.ended
        return None if first is None or ended is None else ended - first

    @property
    def rate(self) -> float | None:
        """Jobs a second."""
        return self.jobs / self.seconds if self.seconds else None


@dataclass(frozen=True, slots=True)
class Site:
    """Where one drain takes place."""

    folder: Path
    installed: Installed
    store: Store
    settings: Mapping[str, Any]
    peculiar: Mapping[str, str]
    timeout: float

    @property
    def starts(self) -> Path:
        """The file that the no-ops append to."""
        return self.folder / "starts"

    @property
    def log(self) -> Path:
        """Return the path of its workers' output."""
        return self.folder / "log"

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment of its programs."""
        return {
            **self.installed.variables(PROGRAMS),
            "PEERS_URL": self.store.url,
            "PEERS_PORT": str(self.store.port),
            "PEERS_STARTS": os.fspath(self.starts),
            "PEERS_SETTINGS": json.dumps(dict(self.settings)),
            **self.peculiar,
        }

    def argv(self, program: object, *words: object) -> list[str]:
        """A command of the environment, or `node`; a word that names one of our programs is its
        path.
        """
        first = "node" if program == "node" else self.installed.program(str(program))
        ours = {path.name: os.fspath(path) for path in PROGRAMS.iterdir()}
        return [first, *(ours.get(str(word), str(word)) for word in words)]

    def run(self, program: object, *words: object) -> None:
        """To its end.

        Raises:
            Failed: it said so, or took too long.
        """
        argv = self.argv(program, *words)
        try:
            done = subprocess.run(
                argv,
                cwd=self.folder,
                env=self.variables,
                capture_output=True,
                text=True,
                timeout=self.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{program}: not done within {self.timeout:g} s") from error
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise Failed(f"{program}: exit {done.returncode}: {said[-1] if said else ''}")


class Peer(ABC):
    """States its difference alone; `drain` is the same for all."""

    name: str
    environment: Environment
    settings: Mapping[str, Any] = MappingProxyType({})
    """Settings that differ from its defaults, printed in the output."""
    processes: int = 1
    """Processes that drain it, each with the same command."""
    variables: Mapping[str, str] = MappingProxyType({})
    """Environment variables of its commands, beside ours."""
    share: float = 1.0
    """Of the jobs that are asked for: less for the slow ones, that a round may end; more for the
    fast ones, that a drain may last.
    """

    @abstractmethod
    def store(self) -> AbstractContextManager[Store]:
        """A new server."""

    def schema(self, site: Site) -> Sequence[Sequence[object]]:
        """The commands that make it, if there is one: words for `Site.run`."""
        return ()

    @abstractmethod
    def enqueue(self, site: Site, jobs: int) -> None:
        """Put in jobs numbered from 0, by its own means."""

    @abstractmethod
    def worker(self, site: Site) -> Sequence[str]:
        """The command that drains it; it runs until it is stopped."""

    @abstractmethod
    def completed(self, site: Site, jobs: int) -> int:
        """How many of them its own store says are complete."""

    def drain(self, jobs: int, cache: Path, deadline: float) -> Drained:
        """Drain once, from an empty store to its end.

        Raises:
            LeftOut: it can't run here. Failed: its jobs couldn't be put in.
        """
        installed = self.environment.installed(cache)
        with (
            tempfile.TemporaryDirectory(prefix=f"schedd-peer-{self.name}-") as folder,
            self.store() as store,
        ):
            # as /proc tells it: what lives there is found by that name
            site = Site(
                Path(folder).resolve(), installed, store, self.settings, self.variables, deadline
            )
            try:
                for command in self.schema(site):
                    site.run(*command)
                began = time.monotonic()
                self.enqueue(site, jobs)
                enqueueing = time.monotonic() - began
                watched = self._watched(site, jobs, deadline)
            finally:
                end(list(living_in(site.folder)))
            content = site.starts.read_bytes() if site.starts.exists() else b""
            verdict = judge(content, jobs)
            return Drained(jobs, verdict, watched, enqueueing, installed.versions, store.reported)

    def _watched(self, site: Site, jobs: int, deadline: float) -> Watched:
        """Its workers, from their start to their end."""
        processes = [
            spawn(self.worker(site), log=site.log, cwd=site.folder, env=site.variables)
            for _ in range(self.processes)
        ]
        try:
            watched = watch(
                site.starts,
                jobs,
                lambda: self.completed(site, jobs),
                lambda: any(process.alive() for process in processes),
                deadline,
            )
        finally:
            end(processes, (signal.SIGTERM, FAREWELL))
        if watched.trouble:
            said = tail(site.log).split("\n")
            last = next((line.strip() for line in reversed(said) if line.strip()), "nothing said")
            return Watched(watched.ended, watched.completed, f"{watched.trouble}: {last}")
        return watched
