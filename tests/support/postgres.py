"""A real PostgreSQL for tests: one server for each test process, a new database per use.

    with scratch_postgres() as server:
        dsn = server.create_database()

The first use starts the server (fsync off, for nothing in it outlives the session); later uses
share it. Whatever ends the session, even SIGKILL, ends the server and removes its folder: a guard
process waits for our end of a pipe to close.

All servers except those of `private_postgres` are copies of one, whose database `schedd` is
migrated: initdb and the migration take 0.8 s of CPU time. All copies have the same identity, so
tests that compare servers or clusters need other ones.
"""

from __future__ import annotations

import atexit
import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from schedctl.dev.servers import binaries, postgres, processes
from schedctl.dev.servers.binaries import PostgresBinaries
from schedctl.dev.servers.processes import DevProcess
from schedd.store.schema import migrate
from support.wait import WAIT_TIMEOUT, wait_until

SETTINGS = {
    **postgres.SETTINGS,
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
}

MEMORY = Path("/dev/shm")
IN_MEMORY = {"tmpfs", "ramfs"}
"""Types of file systems."""
LEAST_MEMORY = 6 * 1024**3
"""Bytes that must be free there: each of several servers keeps up to a gigabyte of WAL."""

MIGRATED = postgres.ROLE
"""The migrated database of each copied server."""
COPIED_FROM = "TESTS_POSTGRES"
"""The variable that names the folder of the copied server, for all test processes."""

_lock = threading.Lock()
_shared: ScratchServer | None = None


@dataclass(slots=True)
class ScratchServer:
    """A running server that no one else knows of."""

    folder: Path
    port: int
    process: DevProcess
    guard: subprocess.Popen[bytes]
    names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def admin_dsn(self) -> str:
        """The superuser's DSN: database `postgres`, no timeouts."""
        return postgres.dsn(self.port, database="postgres", role=postgres.ADMIN)

    def create_database(self, name: str | None = None, *, template: str | None = None) -> str:
        """A new, empty database owned by the role `schedd`, with the daemons' timeouts.

        `template` names another database to copy instead (no session may be open on it), which is
        the quick way to many migrated ones. Answers its DSN.
        """
        name = name or f"scratch_{os.getpid()}_{next(self.names)}"
        return postgres.prepare(self.port, database=name, template=template, monitor=False)

    def create_migrated(self, name: str | None = None) -> str:
        """A new database with the schema, on a copied server."""
        return self.create_database(name, template=MIGRATED)

    def drop_database(self, dsn: str) -> None:
        """Remove a database of ours, ending whatever sessions it still has."""
        name = dsn.rpartition("/")[2]
        with postgres.connect(self.admin_dsn) as session, session.cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def execute(self, statement: str, dsn: str | None = None) -> list[tuple[object, ...]]:
        """Run one statement (by default as superuser); answers its rows, if it gives any."""
        with postgres.connect(dsn or self.admin_dsn) as session, session.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []


@contextmanager
def scratch_postgres() -> Iterator[ScratchServer]:
    """The session's server, started if need be. It stays up for the next one who asks."""
    global _shared
    with _lock:
        if _shared is None or not _shared.process.alive():
            _shared = _start(copied=True)
    yield _shared


@contextmanager
def private_postgres(*, copied: bool = False, **settings: str) -> Iterator[ScratchServer]:
    """A server for one test alone, which may kill, pause or reconfigure it. Gone afterwards.

    `copied`: by `copying_programs`, for a test that compares no servers.
    """
    server = _start(copied=copied, **settings)
    try:
        yield server
    finally:
        _stop(server)


def restart(server: ScratchServer) -> None:
    """Start a private server again, on the same port, after the test has killed it."""
    server.process = _run(server.folder, server.port)


def back_up(server: ScratchServer) -> Path:
    """A copy of a private server's files, taken while it is down for a moment."""
    postgres.stop(server.process, server.folder / "data")
    copied = server.folder / f"backup-{next(server.names)}"
    shutil.copytree(server.folder / "data", copied)
    restart(server)
    return copied


def restore(server: ScratchServer, backup: Path, *, promoted: bool = False) -> None:
    """Kill a private server and start it from a backup; `promoted`: on a higher timeline, as
    after a recovery to a point in time, or as a standby that lags would.
    """
    server.process.send(signal.SIGQUIT)
    wait_until(lambda: not server.process.alive(), WAIT_TIMEOUT, "the server to die")
    shutil.rmtree(server.folder / "data")
    shutil.copytree(backup, server.folder / "data")
    if promoted:
        (server.folder / "data" / "standby.signal").touch()
    restart(server)
    if promoted:
        _promoted(server)


def promote(server: ScratchServer) -> None:
    """Restart a private server as a standby that was promoted: on another timeline."""
    postgres.stop(server.process, server.folder / "data")
    (server.folder / "data" / "standby.signal").touch()
    restart(server)
    _promoted(server)


def _promoted(server: ScratchServer) -> None:
    assert server.execute("SELECT pg_promote()") == [(True,)]
    promoted = "SELECT NOT pg_is_in_recovery()"
    wait_until(lambda: server.execute(promoted) == [(True,)], WAIT_TIMEOUT, "the promotion")


@contextmanager
def copied_server() -> Iterator[dict[str, str]]:
    """Create the folder of the server that all test processes copy; return its variable."""
    folder, guard = _guarded_folder()
    try:
        yield {COPIED_FROM: os.fspath(folder)}
    finally:
        guard.communicate(timeout=30)


@cache
def copying_programs() -> PostgresBinaries:
    """Return PostgreSQL with an `initdb` that copies a server with a migrated database.

    The first caller of all test processes creates that server.
    """
    if COPIED_FROM in os.environ:
        folder = Path(os.environ[COPIED_FROM])
    else:
        folder, guard = _guarded_folder()
        atexit.register(guard.communicate, timeout=30)
    copying = PostgresBinaries(folder / "initdb", folder / "postgres")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not copying.initdb.exists():
            _create_copied_server(folder, copying)
    return copying


def _create_copied_server(folder: Path, copying: PostgresBinaries) -> None:
    real = binaries.find_postgres()
    postgres.initialise(real, folder / "data")
    copying.postgres.symlink_to(real.postgres)
    [port] = processes.reserve(1)
    process = _run(folder, port)
    try:
        migrate.upgrade(postgres.prepare(port, database=MIGRATED, monitor=False))
    finally:
        postgres.stop(process, folder / "data")
    text = f'#!/bin/sh\nexec cp -R "{folder}/data" "$2" # --pgdata FOLDER\n'
    draft = copying.initdb.with_suffix(".new")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.rename(copying.initdb)


def _guarded_folder() -> tuple[Path, subprocess.Popen[bytes]]:
    folder = Path(tempfile.mkdtemp(prefix="schedd-pg-", dir=memory()))
    folder.chmod(0o755)
    return folder, _guard(folder)


def _start(*, copied: bool = False, **settings: str) -> ScratchServer:
    folder, guard = _guarded_folder()
    programs = copying_programs() if copied else binaries.find_postgres()
    postgres.initialise(programs, folder / "data", {**SETTINGS, **settings})
    [port] = processes.reserve(1)
    server = ScratchServer(folder, port, _run(folder, port), guard)
    atexit.register(_stop, server)
    return server


def memory() -> Path | None:
    """Return a file system in memory with enough space for programs and data; None: there is none.

    The copy of a database has hundreds of files: 25 ms here, 140 to 300 ms on a disk.
    """
    if not os.access(MEMORY, os.W_OK) or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return None
    return MEMORY if shutil.disk_usage(MEMORY).free >= LEAST_MEMORY else None


def is_in_memory(folder: Path) -> bool:
    """Return whether files in this folder are kept in memory, where `fsync` does nothing."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    types = {Path(where): kind for _, where, kind, *_ in mounts}  # the last mount covers the others
    resolved = folder.resolve()
    return next(types[one] for one in (resolved, *resolved.parents) if one in types) in IN_MEMORY


def _run(folder: Path, port: int) -> DevProcess:
    log = folder / "log"
    process = postgres.start(binaries.find_postgres(), folder / "data", port, log)
    postgres.wait_ready(process, port, log, timeout=30)
    return process


def _stop(server: ScratchServer) -> None:
    if server.folder.exists():
        postgres.stop(server.process, server.folder / "data")
        server.guard.communicate(timeout=30)


_GUARD = """
read _
if read pid < "$1/data/postmaster.pid"; then
    kill -CONT "$pid"; kill -QUIT "$pid"; left=100
    while kill -0 "$pid" && [ $left -gt 0 ]; do sleep 0.1; left=$((left - 1)); done
    kill -9 "$pid"
fi
rm -rf "$1"
"""


def _guard(folder: Path) -> subprocess.Popen[bytes]:
    """Have the server ended and its folder removed when our end of a pipe closes."""
    return subprocess.Popen(
        ["sh", "-c", _GUARD, "guard", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
