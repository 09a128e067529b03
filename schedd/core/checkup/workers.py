"""Check workers: attached, versions, heartbeats, blocked handlers, room for the spool."""

from collections.abc import Iterator, Sequence
from typing import Final

from schedd.core.checkup.facts import Facts, WorkerFacts
from schedd.core.checkup.finding import CheckSubject, CheckupFinding

AREA: Final = "workers"
MIB: Final = 1024 * 1024
NAMED: Final = 10
"""The most workers without heartbeats that one finding names."""
MAKE_ROOM: Final = (
    "free space on its disk, and check that it reaches a member: accepted results leave the spool"
)


def examine(facts: Facts) -> Iterator[CheckupFinding]:
    check = CheckSubject(AREA, "attached")
    if facts.workers:
        yield check.ok(
            f"{len(facts.workers)} attached here, {len(facts.view.workers)} with a lease in etcd"
        )
    elif facts.view.workers:
        yield check.warn(
            f"none attached to the queried member; {len(facts.view.workers)} with a lease in etcd",
            "this member can't dispatch runs",
            "check that workers reach this member",
        )
    else:
        yield check.bad("no worker", "nothing can run", "start a workerd")
    received = (*facts.workers, *facts.elsewhere)
    old = {one.name: one.version for one in received if one.version != facts.version}
    versions = CheckSubject(AREA, "versions")
    if old:
        yield versions.warn(
            ", ".join(f"{name}: {version}" for name, version in sorted(old.items())),
            f"members run {facts.version}; mixed versions are only for upgrades",
            "upgrade those workers",
        )
    elif received:
        yield versions.ok(facts.version)
    for one in received:
        yield _disk(one)
    yield from _blocked(facts.workers)
    if facts.unheard:
        named = sorted(facts.unheard)
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        yield CheckSubject(AREA, "heartbeats").warn(
            f"no member receives heartbeats of {', '.join(named[:NAMED])}{more}",
            "the runs on these workers are unknown; when a lease expires, its worker's runs start"
            " again elsewhere",
            "check that the workers run and reach a member",
        )


def _blocked(workers: Sequence[WorkerFacts]) -> Iterator[CheckupFinding]:
    check = "handlers"
    if workers and not any(one.blocked for one in workers):
        yield CheckSubject(AREA, check).ok("no handler blocks an event loop")
    for one in workers:
        for block in one.blocked:
            yield CheckSubject(AREA, check, one.name).warn(
                f"handler {block.handler!r} of run {block.run} has blocked an event loop for"
                f" {block.seconds:.0f} s, at {block.place}",
                "other coroutines on this loop wait; a cancel reaches the handler only after it"
                " returns",
                "use `await` in the handler, or make it a plain `def`; to free the loop now:"
                " `schedctl"
                f" worker drain {one.name}`, then restart this worker",
            )


def _disk(one: WorkerFacts) -> CheckupFinding:
    check = CheckSubject(AREA, "spool", one.name)
    size = f"{one.spool / MIB:.1f} MiB, {one.disk_free / MIB:.1f} MiB free"
    if one.refuses:
        return check.bad(
            f"{one.refuses}; {size}",
            "this worker takes no new runs; a result that can't be spooled is lost if it stops",
            MAKE_ROOM,
        )
    if not one.disk_free:
        return check.ok("unknown: this worker's version doesn't report it")
    if one.disk_free < 64 * MIB:
        return check.bad(
            size,
            "when its disk is full, this worker takes no new runs, and results that can't be"
            " spooled are lost if it stops",
            "free space on its disk",
        )
    if one.disk_free < 1024 * MIB:
        return check.warn(size, "the disk is nearly full", "free space on it")
    if one.spool > 64 * MIB:
        return check.warn(
            size, "results that no member accepts pile up", "see that worker's log and metrics"
        )
    return check.ok(size)
