"""Resources of each daemon, from /proc: memory, descriptors, threads, connections, spool; and
what the database's tables hold once VACUUM has given back what it can.

It is looked at in quiet times: before the first fault, between faults, and when all have ended and
are stable. L6 judges what has come back; `held` tells how much there was.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from faults.history import Recorder, Resource
from faults.world.service import Service
from faults.world.world import World

Phase = Literal["before", "during", "after"]
FIELDS = ("rss_kib", "fds", "threads", "connections", "spool_bytes", "heap_bytes", "dead_rows")
LIVING = "timers, live, shards, incarnations, lost_assignments, cluster, term"
"""Tables that hold only what lives, so that they grow by bloat alone."""


def record(world: World, recorder: Recorder, phase: Phase) -> list[Resource]:
    """Write down what each daemon that lives holds now, and answer it."""
    samples = []
    connections = _connections(world) if world.postgres.answers() else {}
    for name, service in (*world.members.items(), *world.workers.items()):
        spool = spooled_in(world.work / name) if name in world.workers else None
        if (found := _of(service, phase, connections.get(name), spool)) is not None:
            samples.append(found)
    if phase != "during" and (found := _database(world, phase)) is not None:
        samples.append(found)
    for sample in samples:
        recorder.resource(sample)
    return samples


def held(before: Iterable[Resource], after: Iterable[Resource]) -> dict[str, dict[str, Any]]:
    """For docs/evidence, of all members, of all workers and of the database: their number, and of
    each thing the sum before and after.
    """
    first, last = _by_kind(before), _by_kind(after)
    return {kind: _sums(first[kind], last[kind]) for kind in sorted(first.keys() & last.keys())}


def _by_kind(samples: Iterable[Resource]) -> Mapping[str, list[Resource]]:
    found: dict[str, list[Resource]] = {}
    for sample in samples:
        found.setdefault(_kind(sample), []).append(sample)
    return found


def _kind(sample: Resource) -> str:
    if sample.heap_bytes is not None:
        return "database"
    return "members" if sample.spool_bytes is None else "workers"  # who alone have spools


def _sums(before: Iterable[Resource], after: Iterable[Resource]) -> dict[str, Any]:
    first, last = list(before), list(after)
    sums: dict[str, Any] = {"processes": len(last)}
    for field in FIELDS:
        values = [[getattr(each, field) for each in samples] for samples in (first, last)]
        if all(None not in each for each in values):
            sums[field] = [sum(each) for each in values]
    return sums


def _of(
    service: Service, phase: Phase, connections: int | None, spool: int | None
) -> Resource | None:
    home = Path(f"/proc/{service.pid}")
    try:
        status = (home / "status").read_text()
        fds = len(list((home / "fd").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return None
    rss, threads = (
        int(found[1]) if (found := re.search(rf"^{field}:\s+(\d+)", status, re.MULTILINE)) else 0
        for field in ("VmRSS", "Threads")
    )
    return Resource(
        time.time(), service.name, service.pid, rss, fds, threads, connections, spool, phase
    )


def _database(world: World, phase: Phase) -> Resource | None:
    """PostgreSQL's first process, and its tables after a VACUUM; None where it doesn't answer.
    Whichever server it is now, it goes by one name.
    """
    if not world.postgres.answers():
        return None
    sample = _of(world.postgres.service, phase, None, None)
    world.postgres.sql(f"VACUUM {LIVING}")
    [(heap, dead)] = world.postgres.sql(
        "SELECT sum(pg_relation_size(relid))::bigint, sum(n_dead_tup)::bigint"
        " FROM pg_stat_user_tables WHERE relname = ANY (%s)",
        LIVING.split(", "),
    )
    return sample and replace(sample, who="PostgreSQL", heap_bytes=int(heap), dead_rows=int(dead))


def _connections(world: World) -> dict[str, int]:
    rows = world.postgres.sql(
        "SELECT host(client_addr), count(*) FROM pg_stat_activity"
        " WHERE client_addr IS NOT NULL GROUP BY 1"
    )
    by_address = {str(address): int(count) for address, count in rows}
    return {
        name: by_address.get(service.host.address, 0) for name, service in world.members.items()
    }


def spooled_in(folder: Path) -> int:
    """Bytes of results that wait there. Some are acknowledged, and gone, while they are counted."""
    found = 0
    for file in folder.glob("*.results"):
        with suppress(FileNotFoundError):
            found += file.stat().st_size
    return found
