"""PostgreSQL put back to an older state: all that was committed since its backup is gone."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from faults.dump import dump_tables
from faults.history import Restore
from faults.nemesis.journal import Journal, NoEffect
from faults.world.postgres import Server
from faults.world.world import World
from schedctl.dev.servers import postgres
from support.wait import wait_until

ANSWERS_WITHIN = 30.0


@dataclass(frozen=True, slots=True)
class Backup:
    """A base backup, to be put back once. `taken`: its end; what was committed by then is in it."""

    folder: Path
    taken: float


def back_up(world: World) -> Backup:
    """Return the backup of its PostgreSQL, as it runs."""
    folder = world.postgres.data.with_name("backup")
    shutil.rmtree(folder, ignore_errors=True)
    world.postgres.back_up(folder)
    return Backup(folder, time.time())


@contextmanager
def restored(
    journal: Journal, world: World, backup: Backup, since: float, again: float
) -> Iterator[Restore]:
    """Stopped, its files replaced by the backup's, begun again; healed when the block is left.

    `since`: when the run's first job was made. `again`: so many seconds before the stop lies the
    horizon, from which on the block has to have the cluster catch up when it resumes it. Before it
    was stopped, and before it was opened again, writes were impossible: rows and commits are as
    they stood then.
    """
    server, recorder = world.postgres, journal.recorder
    with journal.fault("PostgreSQL restored", server.host.name, taken=backup.taken) as fault:
        stopped = time.time()
        _shut_out(server)
        commits = world.commits.absorb()
        recorder.commits(commits)
        dump_tables(server, recorder.stopped, since)
        newest = _newest_run(server)
        server.stop()
        shutil.rmtree(server.data)
        backup.folder.rename(server.data)
        with server.behind_the_back_door():
            server.keep_commits()
            world.commits.restart()
            dump_tables(server, recorder.restored, since, without=())  # commits compare with all
            if _newest_run(server) >= newest:
                raise NoEffect("the database didn't go back")
        server.service.start()
        wait_until(server.answers, ANSWERS_WITHIN, "PostgreSQL to answer")
        fault.took_effect(
            what="the newest run is older than before", seconds=stopped - backup.taken
        )
        recorded = sum(1 for _ in (recorder.directory / "commits.jsonl").open("rb"))
        horizon = math.floor(stopped - again) + 0.5  # no instant is as near to it as clocks may err
        restore = Restore(backup.taken, stopped, time.time(), recorded, horizon)
        recorder.restore(restore)
        try:
            yield restore
        finally:
            fault.end()


def _shut_out(server: Server) -> None:
    """No daemon has a session, nor gets one; the backup knows nothing of it."""
    server.sql(f"ALTER ROLE {postgres.ROLE} NOLOGIN")
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s"
    wait_until(lambda: not server.sql(end, postgres.ROLE), 10, "their sessions to end")


def _newest_run(server: Server) -> float:
    [(newest,)] = server.sql("SELECT extract(epoch FROM max(created_at)) FROM runs")
    return float(newest)
