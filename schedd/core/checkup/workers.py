"""Check workers: attached, versions, heartbeats, blocked handlers, room for the spool."""

from collections.abc import Iterator, Sequence
from typing import Final

from schedd.core.checkup.facts import BlockedLoop, Facts, WorkerFacts
from schedd.core.checkup.finding import CheckSubject, CheckupFinding
from schedd.core.dispatch.worker_refusals import BLOCKED, refusal_of

AREA: Final = "workers"
MIB: Final = 1024 * 1024
LEAST_FREE: Final = 64 * MIB
LOW: Final = 1024 * MIB
"""Free space below which the disk of a spool is reported."""
NAMED: Final = 10
"""The most workers without heartbeats that one finding names."""


def examine(facts: Facts) -> Iterator[CheckupFinding]:
    check = CheckSubject(AREA, "attached")
    if facts.workers:
        leases = "unknown" if facts.outdated else len(facts.view.workers)
        yield check.ok(f"{len(facts.workers)} attached here, {leases} with a lease in etcd")
    elif facts.outdated:
        yield check.warn(
            "none attached to the queried member; workers of other members are unknown",
            "this member can't dispatch runs",
            "check that workers run and reach this member",
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
    yield from _blocked(received)
    if facts.heartbeats_missing:
        named = sorted(facts.heartbeats_missing)
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        yield CheckSubject(AREA, "heartbeats").warn(
            f"no member receives heartbeats of {', '.join(named[:NAMED])}{more}",
            "the runs on these workers are unknown; when a lease expires, its worker's runs start"
            " again elsewhere",
            "check that the workers run and reach a member",
        )


def _blocked(workers: Sequence[WorkerFacts]) -> Iterator[CheckupFinding]:
    found = [finding for one in workers for finding in _of_handlers(one)]
    if workers and not found:
        yield CheckSubject(AREA, BLOCKED.check).ok("no handler blocks an event loop")
    yield from found


def _of_handlers(one: WorkerFacts) -> Iterator[CheckupFinding]:
    """Report each handler that blocks loops of this worker, and each refusal that isn't of the
    spool. Only the member to which a worker is attached knows its blocked loops.
    """
    by_handler = dict[str, list[BlockedLoop]]()
    for block in one.blocked:
        by_handler.setdefault(block.handler, []).append(block)
    kind = refusal_of(one.refusal_reason)
    for blocks in by_handler.values():
        check, remedy = CheckSubject(AREA, BLOCKED.check, one.name), BLOCKED.remedy_for(one.name)
        if one.refusal_reason and kind is BLOCKED:
            yield check.bad(_blocks(blocks), BLOCKED.why, remedy)
        else:
            why = "coroutines on a blocked loop wait; a cancel reaches them only after the block"
            yield check.warn(_blocks(blocks), why, remedy)
    if one.refusal_reason and not (kind.check == "spool" or (kind is BLOCKED and by_handler)):
        check = CheckSubject(AREA, kind.check, one.name)
        yield check.bad(one.refusal_reason, kind.why, kind.remedy_for(one.name))


def _blocks(blocks: Sequence[BlockedLoop]) -> str:
    """Describe the loops that one handler blocks on one worker."""
    longest = max(blocks, key=lambda block: block.seconds)
    of, loops, runs = f" of run {longest.run}", "an event loop", ""
    if len(blocks) > 1:
        of, loops = "", f"{len(blocks)} event loops, the longest"
        runs = f"; its runs: {', '.join(block.run for block in blocks)}"
    return (
        f"handler {longest.handler!r}{of} has blocked {loops} for {longest.seconds:.0f} s, at"
        f" {longest.place}{runs}"
    )


def _disk(one: WorkerFacts) -> CheckupFinding:
    check = CheckSubject(AREA, "spool", one.name)
    spooled, free = one.spool / MIB, one.disk_free / MIB
    size = f"the spool holds {spooled:.1f} MiB; its disk has {free:.1f} MiB free"
    kind = refusal_of(one.refusal_reason)
    if one.refusal_reason and kind.check == check.check:
        return check.bad(f"{one.refusal_reason}; {size}", kind.why, kind.remedy_for(one.name))
    if not one.disk_free:
        return check.warn(
            "the free space on its disk is unknown",
            "a disk that fills up isn't reported before the worker rejects work",
            "run the doctor again after the worker's next heartbeat; if it is still unknown, check"
            " that disk",
        )
    if one.disk_free < LEAST_FREE:
        return check.bad(
            f"{size}, less than {LEAST_FREE // MIB} MiB",
            "when its disk is full, this worker takes no new runs, and results that can't be"
            " spooled are lost if it stops",
            "free space on its disk (`df -h`), or move its spool to a larger disk",
        )
    if one.disk_free < LOW:
        return check.warn(
            f"{size}, less than {LOW // MIB:,} MiB",
            "the spool keeps results while members don't accept them; when its disk is full, this"
            " worker takes no new runs",
            "free space on its disk (`df -h`), or move its spool to a larger disk",
        )
    if one.spool > 64 * MIB:
        return check.warn(
            size, "results that no member accepts pile up", "see that worker's log and metrics"
        )
    return check.ok(size)
