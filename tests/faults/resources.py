"""What each daemon holds, as /proc tells: memory, descriptors, threads, connections, spool."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Literal

from faults.history import Recorder, Resource
from faults.world.service import Service
from faults.world.world import World

Phase = Literal["before", "during", "after"]


def record(world: World, recorder: Recorder, phase: Phase) -> None:
    """Write down what each living daemon and PostgreSQL hold now."""
    connections = _connections(world) if world.postgres.answers() else {}
    for name, service in (*world.members.items(), *world.workers.items()):
        spool = _bytes_below(world.work / name) if name in world.workers else None
        if (found := _of(service, phase, connections.get(name), spool)) is not None:
            recorder.resource(found)


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


def _connections(world: World) -> dict[str, int]:
    rows = world.postgres.sql(
        "SELECT host(client_addr), count(*) FROM pg_stat_activity"
        " WHERE client_addr IS NOT NULL GROUP BY 1"
    )
    by_address = {str(address): int(count) for address, count in rows}
    return {
        name: by_address.get(service.host.address, 0) for name, service in world.members.items()
    }


def _bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.results"))
