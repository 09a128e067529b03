"""Check workers: attached, versions, heartbeats, blocked handlers, room for the spool."""

from collections.abc import Iterator, Sequence
from typing import Final

from schedd.core.checkup.facts import BlockedLoop, Facts
from schedd.core.checkup.finding import CheckSubject, CheckupFinding
from schedd.core.dispatch.worker_refusals import BLOCKED, refusal_of
from schedd.core.runs.records import WorkerView

AREA: Final = "workers"
MIB: Final = 1024 * 1024
LEAST_FREE: Final = 64 * MIB
LOW: Final = 1024 * MIB
"""Free space below which the disk of a spool is reported."""
NAMED: Final = 10


def examine(facts: Facts) -> Iterator[CheckupFinding]:
    check = CheckSubject(AREA, "attached")
    if facts.workers:
        leases = "unknown" if facts.outdated else len(facts.view.workers)
        yield check.ok(
            f"workers attached to the queried member: {len(facts.workers)}; workers with a lease in"
            f" etcd: {leases}"
        )
    elif facts.outdated:
        yield check.warn(
            "no worker is attached to the queried member; workers of other members are unknown",
            "this member can't dispatch runs",
            "check that workers run and reach this member",
        )
    elif facts.view.workers:
        yield check.warn(
            "no worker is attached to the queried member; workers with a lease in etcd:"
            f" {len(facts.view.workers)}",
            "this member can't dispatch runs",
            "check that workers reach this member",
        )
    else:
        yield check.bad("no worker is running", "no run can start", "start a worker (workerd)")
    received = (*facts.workers, *facts.elsewhere)
    known = [one.incarnation for one in received]
    old = {one.worker: one.version for one in known if one.version != facts.version}
    versions = CheckSubject(AREA, "versions")
    if old:
        yield versions.warn(
            ", ".join(f"{name}: {version}" for name, version in sorted(old.items())),
            f"members run {facts.version}; mixed versions are supported only during an upgrade",
            "upgrade these workers",
        )
    elif received:
        yield versions.ok(facts.version)
    for one in received:
        yield _disk(one)
    found = [finding for one in received for finding in _of_handlers(one, facts)]
    if received and not found:
        yield CheckSubject(AREA, BLOCKED.check).ok("no handler blocks an event loop")
    yield from found
    if facts.heartbeats_missing:
        named = sorted(facts.heartbeats_missing)
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        yield CheckSubject(AREA, "heartbeats").warn(
            f"no member receives heartbeats of {', '.join(named[:NAMED])}{more}",
            "the runs on these workers are unknown; when a worker's lease expires, its runs start"
            " again on other workers",
            "check that these workers run and reach a member",
        )


def _of_handlers(one: WorkerView, facts: Facts) -> Iterator[CheckupFinding]:
    """Report each handler that blocks loops of this worker, and each refusal that isn't of the
    spool. Only the member to which a worker is attached knows its blocked loops.
    """
    by_handler = dict[str, list[BlockedLoop]]()
    for block in facts.blocked.get(one.incarnation.id, ()):
        by_handler.setdefault(block.handler, []).append(block)
    name, kind = one.incarnation.worker, refusal_of(one.refusal_reason)
    for blocks in by_handler.values():
        check, remedy = CheckSubject(AREA, BLOCKED.check, name), BLOCKED.remedy_for(name)
        if one.refusal_reason and kind is BLOCKED:
            yield check.bad(_blocks(blocks), BLOCKED.why, remedy)
        else:
            why = "other coroutines on the event loop wait, and a cancel of their runs waits, too"
            yield check.warn(_blocks(blocks), why, remedy)
    if one.refusal_reason and not (kind.check == "spool" or (kind is BLOCKED and by_handler)):
        check = CheckSubject(AREA, kind.check, name)
        yield check.bad(one.refusal_reason, kind.why, kind.remedy_for(name))


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


def _disk(one: WorkerView) -> CheckupFinding:
    spooled, free = one.spool / MIB, one.disk_free / MIB
    size = f"the spool holds {spooled:.1f} MiB; its disk has {free:.1f} MiB free"
    check = CheckSubject(AREA, "spool", one.incarnation.worker, size)
    kind = refusal_of(one.refusal_reason)
    if one.refusal_reason and kind.check == check.check:
        return check.bad(f"{one.refusal_reason}; {size}", kind.why, kind.remedy_for(check.subject))
    if not one.disk_free:
        return check.warn(
            "the free space on the spool's disk is unknown",
            "the doctor can't warn before the disk is full and the worker rejects work",
            "run the doctor again after the worker's next heartbeat; if the space is still unknown,"
            " check this disk",
        )
    if one.disk_free < LEAST_FREE:
        return check.bad(
            f"{size}, less than {LEAST_FREE // MIB} MiB",
            "when the spool's disk is full, this worker takes no new runs, and loses unstored"
            " results if it stops",
            "free space on this disk (`df -h`), or move the spool to a larger disk",
        )
    if one.disk_free < LOW:
        return check.warn(
            f"{size}, less than {LOW // MIB:,} MiB",
            "the spool keeps results until members accept them; when its disk is full, this worker"
            " takes no new runs",
            "free space on this disk (`df -h`), or move the spool to a larger disk",
        )
    return check.warn_if(
        one.spool > 64 * MIB,
        size,
        "no member accepts the results in the spool, or members accept them too slowly",
        "the log and the metrics of this worker show the reason",
    )
