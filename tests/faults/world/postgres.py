"""PostgreSQL on a host of its own, with every commit kept for logical decoding.

`fsync` is off, for the data need only outlive the process, not the machine; `synchronous_commit`
is on, so that what was acknowledged survives a crash of the server.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from faults.world.clock import ClusterClock
from faults.world.network import Host
from faults.world.service import Service
from schedctl.dev.servers import binaries, postgres
from support.wait import wait_until

PORT = 5432
SLOT = "faults"
"""The replication slot through which all commits are read, in their order."""

SETTINGS = {
    **postgres.SETTINGS,
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "wal_level": "logical",
    "max_connections": "120",
    "superuser_reserved_connections": "12",  # the tests' own, also while their last ones still end
    "log_min_duration_statement": "1000",
}


class Server:
    """The service, and SQL on it as superuser (no timeouts) by the host's back door.

    `clock`: what it takes for the time, if not the host's.
    """

    def __init__(
        self, host: Host, work: Path, logs: Path, clock: ClusterClock | None = None
    ) -> None:
        self.host = host
        self.data = work / host.name / "data"
        self._programs = binaries.find_postgres()
        prefix = postgres.nonroot_prefix(self.data, self._programs.postgres)
        self._command = [
            *prefix,
            *(clock.before() if clock else ()),
            os.fspath(self._programs.postgres),
            *("-D", os.fspath(self.data)),
            *("-p", str(PORT)),
            *("-k", ""),
        ]
        self.service = Service(
            host.name,
            host,
            [*self._command, "-h", "0.0.0.0"],
            logs / f"{host.name}.log",
            work,
            base=postgres.environment,
            before=lambda: postgres.clean_up(self.data),
        )

    @property
    def dsn(self) -> str:
        """The daemons' database, by the host's own address."""
        return postgres.dsn(PORT, host=self.host.address)

    def program(self, name: str) -> list[str]:
        """Another program of PostgreSQL's, to be run on this host by the owner of its folders."""
        path = self._programs.postgres.with_name(name)
        prefix = postgres.nonroot_prefix(self.data, path)
        return [*self.host.enter(), *prefix, os.fspath(path)]

    def kill(self) -> None:
        """SIGKILL to the server and to whatever of it would live on for a moment."""
        self.service.kill()
        postgres.clean_up(self.data)

    @property
    def back_door(self) -> str:
        """The daemons' database for the superuser, past every cut and detour of the nemesis."""
        return postgres.dsn(PORT, role=postgres.ADMIN, host=self.host.back_door)

    def stop(self, within: float = 20.0) -> None:
        """End it in fast mode: sessions are ended, all is written. It isn't started again."""
        self.service.wanted = False
        self.service.process.send(signal.SIGINT)
        assert self.service.gone_within(within), f"PostgreSQL lives after {within:g} s"

    @contextmanager
    def behind_the_back_door(self) -> Iterator[None]:
        """Run it in this block; no member reaches it."""
        everywhere = self.service.argv
        self.service.argv = [*self._command, "-h", self.host.back_door]
        self.service.start()
        try:
            wait_until(self.answers, 30.0, "PostgreSQL to answer")
            yield
            self.stop()
        finally:
            self.service.argv = everywhere

    def back_up(self, folder: Path) -> None:
        """Write a base backup, complete on its own, into this folder, while it runs."""
        self.copy_to(self, folder, "--checkpoint", "fast")

    def copy_to(self, owner: Server, folder: Path, *options: str) -> None:
        """Copy its files, while it runs, into a folder on another server's host."""
        source = f"host={self.host.address} port={PORT} user={postgres.ADMIN}"
        source += f" application_name={owner.host.name}"
        command = [*owner.program("pg_basebackup"), "--dbname", source, "--pgdata", str(folder)]
        done = subprocess.run(
            [*command, "--no-sync", *options],
            cwd=folder.parent,
            env=postgres.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"pg_basebackup: {done.stderr}")

    def initialise(self) -> None:
        """Make the data folder."""
        postgres.initialise(self._programs, self.data, SETTINGS)
        with (self.data / "pg_hba.conf").open("a") as access:
            for database in ("all", "replication"):  # to be copied and followed, too
                access.write(f"host {database} all 10.213.0.0/16 trust\n")

    def prepare(self) -> None:
        """The daemons' role and database, on a server that answers."""
        postgres.prepare(PORT, host=self.host.back_door)

    def keep_commits(self) -> None:
        """Make the slot: every commit from now on can be read back."""
        slot = "SELECT pg_create_logical_replication_slot(%s, 'test_decoding')"
        self.sql(slot, SLOT)

    def answers(self) -> bool:
        """Whether it accepts connections and serves them."""
        import psycopg2

        admin = postgres.dsn(
            PORT, database="postgres", role=postgres.ADMIN, host=self.host.back_door
        )
        try:
            with postgres.connect(admin, timeout=2):
                return True
        except psycopg2.OperationalError:
            return False

    def sql(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement in the daemons' database; return its rows, if it gives any."""
        with postgres.connect(self.back_door) as session, session.cursor() as cursor:
            cursor.execute(query, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def each(
        self, query: str, row: Callable[[Sequence[Any]], None], values: Sequence[object] = ()
    ) -> None:
        """Call `row` for each row of a long answer."""
        with postgres.connect(self.back_door) as session, session.cursor() as cursor:
            cursor.execute(query, values or None)
            while rows := cursor.fetchmany(2000):
                for found in rows:
                    row(found)

    def dump(self, file: Path) -> None:
        """`pg_dump` of the daemons' database, for a person who looks into a failure."""
        program = self._programs.postgres.with_name("pg_dump")
        with file.open("wb") as output:
            subprocess.run(
                [os.fspath(program), self.back_door],
                stdout=output,
                stderr=subprocess.DEVNULL,
                env=postgres.environment(),
                timeout=120,
                check=False,
            )
