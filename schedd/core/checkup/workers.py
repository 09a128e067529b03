"""Workers: is there one, are they of this version, have their spools room."""

from collections.abc import Iterator, Sequence
from typing import Final

from schedd.core.checkup.facts import Facts, WorkerFacts
from schedd.core.checkup.finding import CheckSubject, Finding

AREA: Final = "workers"
MIB: Final = 1024 * 1024
NAMED: Final = 10
"""Workers that are named at most where no member hears them."""
MAKE_ROOM: Final = (
    "make room on its disk, and let it reach a member: what is stored leaves the spool"
)


def examine(facts: Facts) -> Iterator[Finding]:
    """Whether there are any, and each."""
    check = CheckSubject(AREA, "attached")
    if facts.workers:
        yield check.ok(f"{len(facts.workers)} here, {len(facts.view.workers)} live by etcd")
    elif facts.view.workers:
        yield check.warn(
            f"none to the member that was asked; {len(facts.view.workers)} live by etcd",
            "it can hand nothing out",
            "see whether workers reach it",
        )
    else:
        yield check.bad("there is none", "nothing can run", "start a workerd")
    heard = (*facts.workers, *facts.elsewhere)
    old = {one.name: one.version for one in heard if one.version != facts.version}
    versions = CheckSubject(AREA, "versions")
    if old:
        yield versions.warn(
            ", ".join(f"{name}: {version}" for name, version in sorted(old.items())),
            f"members are of {facts.version}; mixed versions are for upgrades alone",
            "upgrade those workers",
        )
    elif heard:
        yield versions.ok(facts.version)
    for one in heard:
        yield _disk(one)
    yield from _blocked(facts.workers)
    if facts.unheard:
        named = sorted(facts.unheard)
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        yield CheckSubject(AREA, "heard").warn(
            f"no member that can say so hears {', '.join(named[:NAMED])}{more}",
            "what runs there isn't known; when the lease of one ends its runs are done again"
            " elsewhere",
            "see whether they run, and reach a member (one of an earlier version doesn't say)",
        )


def _blocked(workers: Sequence[WorkerFacts]) -> Iterator[Finding]:
    check = "handlers"
    if workers and not any(one.blocked for one in workers):
        yield CheckSubject(AREA, check).ok("none blocks an event loop")
    for one in workers:
        for block in one.blocked:
            yield CheckSubject(AREA, check, one.name).warn(
                f"handler {block.handler!r} of run {block.run} has blocked an event loop for"
                f" {block.seconds:.0f} s, at {block.place}",
                "coroutines that began on this loop wait; a cancel reaches the handler only once it"
                " returns",
                "let the handler await, or make it a plain `def`; to free the loop now: `schedctl"
                f" worker drain {one.name}`, then restart this worker",
            )


def _disk(one: WorkerFacts) -> Finding:
    check = CheckSubject(AREA, "spool", one.name)
    told = f"{one.spool / MIB:.1f} MiB, {one.disk_free / MIB:.1f} MiB free"
    if one.refuses:
        return check.bad(
            f"{one.refuses}; {told}",
            "it takes no new work; a result that can't be spooled is lost when the worker dies",
            MAKE_ROOM,
        )
    if not one.disk_free:
        return check.ok("it doesn't say; an older version")
    if one.disk_free < 64 * MIB:
        return check.bad(
            told,
            "a result that can't be spooled is lost when the worker dies, and it takes no new work",
            "make room on its disk",
        )
    if one.disk_free < 1024 * MIB:
        return check.warn(told, "the disk is nearly full", "make room on it")
    if one.spool > 64 * MIB:
        return check.warn(
            told, "results that no member takes pile up", "see that worker's log and metrics"
        )
    return check.ok(told)
