"""Leftovers at the end of a run, when all is quiet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from faults.history import Leftovers
from faults.world.grounds import run
from faults.world.service import Service
from faults.world.world import World
from schedctl.dev.servers.processes import find

KINDS = tuple(
    f"schedd/{kind}" for kind in ("members", "workers", "leader", "map", "mark", "cluster")
)
TREE = re.compile(r"gets a cgroup below (\S+)")
"""Log line of a worker's start: where the cgroups of its attempts will be."""


def leftovers(world: World, restarts: Iterable[str] = ()) -> Leftovers:
    """Look for them. Nothing may run in the meantime. `restarts`: who was started again."""
    workers = world.workers.values()
    return Leftovers(
        processes=tuple(_orphans(world)),
        etcd_keys=tuple(_strange_keys(world)),
        spool_files=tuple(
            str(file.relative_to(world.work))
            for worker in workers
            for file in (world.work / worker.name).glob("*.results")
        ),
        cgroups=tuple(
            f"{worker.name}: {group}"
            for worker in workers
            for group in strange_groups(worker.said_since(0))
        ),
        restarts=tuple(name for name in restarts if name in world.members or name in world.workers),
    )


def strange_groups(log: str) -> Iterator[str]:
    """By a worker's log: cgroups of earlier lives; and those of its attempts in which more lives
    than the process that waits for the next one.
    """
    trees = [Path(path) for path in TREE.findall(log)]
    for tree in trees[:-1]:
        if tree.is_dir():
            yield f"{tree.name}, of an earlier life"
    for members in (each for tree in trees[-1:] for each in tree.glob("*/cgroup.procs")):
        pids = members.read_text().split()
        if len(pids) > 1:
            yield f"{members.parent.name}: {[_command(int(pid)) for pid in pids]}"


def _orphans(world: World) -> list[str]:
    """Processes on the hosts of daemons that no daemon is the parent of."""
    return [
        f"{service.name}: {pid} {_command(pid)}"
        for service in (*world.members.values(), *world.workers.values())
        for pid in _pids_on(service)
        if find(pid) is not None and not _descends(pid, service.pid)
    ]


def _pids_on(service: Service) -> list[int]:
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
