"""What is written down when a run is over: final rows, commits in order, leftovers.

A run among several in one world owns the jobs it made: rows of other jobs aren't its own, rows of
the cluster's life (shards, tenures, incarnations, audit since it began) belong to all.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from faults.history import Leftovers, Recorder
from faults.world.postgres import Server
from faults.world.service import Service
from faults.world.world import World
from schedctl.dev import postgres as dev_postgres
from schedctl.dev.processes import find

OF_JOBS = {
    "jobs": "job_id",
    "timers": "job_id",
    "runs": "job_id",
    "live": "job_id",
    "dead_letters": "job_id",
}
OF_RUNS = ("attempts",)
OF_THE_CLUSTER = ("cluster", "term", "tenures", "shards", "shard_log", "incarnations")
LARGE = ("outputs", "results", "spec", "payload")
"""Tables and columns that no check looks at."""


def dump_initial(server: Server, recorder: Recorder) -> None:
    """Write the cluster's rows as they stand before the commits to come."""
    for table in OF_THE_CLUSTER:
        _dump(server, recorder.initial, table, "%s::timestamptz IS NOT NULL", datetime.now(UTC))


def dump_tables(server: Server, recorder: Recorder, since: float) -> None:
    """Write the rows of jobs made since this time, and those of the cluster."""
    began = datetime.fromtimestamp(since, UTC)
    mine = "job_id IN (SELECT job_id FROM jobs WHERE created_at >= %s)"
    for table, column in OF_JOBS.items():
        _dump(
            server,
            recorder.final,
            table,
            f"{column} IN (SELECT job_id FROM jobs WHERE created_at >= %s)",
            began,
        )
    for table in OF_RUNS:
        _dump(
            server,
            recorder.final,
            table,
            f"run_id IN (SELECT run_id FROM runs WHERE {mine})",
            began,
        )
    for table in OF_THE_CLUSTER:
        _dump(server, recorder.final, table, "%s::timestamptz IS NOT NULL", began)
    _dump(server, recorder.final, "audit", "at >= %s", began)
    _dump(server, recorder.final, "idempotency_keys", "created_at >= %s", began)


def _dump(
    server: Server,
    write: Callable[[str, Iterable[Mapping[str, Any]]], None],
    table: str,
    where: str,
    began: datetime,
) -> None:
    columns = [
        name
        for (name,) in server.sql(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass"
            " AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            table,
        )
        if name not in LARGE
    ]
    texts = ", ".join(f'"{name}"::text' for name in columns)
    with (
        dev_postgres.connect(server.back_door) as session,
        session.cursor() as cursor,
    ):
        cursor.execute("SET timezone = 'UTC'")
        cursor.execute(f"SELECT {texts} FROM {table} WHERE {where}", (began,))
        write(table, (dict(zip(columns, row, strict=True)) for row in cursor))


def commit_of_tree() -> str:
    """What git calls the tree that the test runs from; `-dirty` if more than docs have changed."""
    commit = _git("describe", "--always")
    changed = _git("status", "--porcelain", "--untracked-files=no", ":/", ":(exclude,top)docs")
    return f"{commit}-dirty" if changed else commit


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()


def leftovers(world: World, prefixes: Collection[str]) -> Leftovers:
    """What is there when all is quiet and should not be."""
    return Leftovers(
        processes=tuple(_orphans(world)),
        etcd_keys=tuple(_strange_keys(world)),
        spool_files=tuple(
            str(file.relative_to(world.work))
            for worker in world.workers.values()
            for file in (world.work / worker.name).glob("*.results")
        ),
    )


def _orphans(world: World) -> list[str]:
    """Processes on the hosts of daemons that no daemon is the parent of."""
    return [
        f"{service.name}: {pid} {_command(pid)}"
        for service in (*world.members.values(), *world.workers.values())
        for pid in _pids_on(service)
        if find(pid) is not None and not _descends(pid, service.pid)
    ]


def _pids_on(service: Service) -> list[int]:
    from faults.world.grounds import run

    return [int(pid) for pid in run("ip", "netns", "pids", service.host.namespace).split()]


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        pid = int(stat.rpartition(")")[2].split()[1])
    return pid == ancestor


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
    except (FileNotFoundError, ProcessLookupError):
        return "(gone)"


def _strange_keys(world: World) -> list[str]:
    """Keys but those of the living: one a member, one a worker, the leader's and the map."""
    found = world.etcdctl("get", "--prefix", "", "--keys-only").split()
    tenures, incarnations = len(world.members), len(world.workers)
    by_kind: dict[str, list[str]] = {}
    for key in found:
        by_kind.setdefault("/".join(key.split("/")[:2]), []).append(key)
    strange = [key for kind, keys in by_kind.items() if kind not in KINDS for key in keys]
    for kind, most in (("schedd/members", tenures), ("schedd/workers", incarnations)):
        if len(by_kind.get(kind, [])) > most:
            strange += [f"{len(by_kind[kind])} keys under {kind} of {most}: {by_kind[kind]}"]
    return strange


KINDS = ("schedd/members", "schedd/workers", "schedd/leader", "schedd/map")
