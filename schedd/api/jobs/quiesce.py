"""What `ok` of pause, edit and delete waits for: each attempt that may still start was given up,
has started, or has expired (PROTOCOL 3).

    probe ─→ change, COMMIT ─→ what is out? ─→ asked back, until it expires ─→ probe ─→ ok
      └──────────────── the same timeline of PostgreSQL? else: unknown ────┘

A standby that was promoted while `ok` waited may lack the change. What fails after the COMMIT
leaves it standing, so it is never told as if nothing had been done.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Final

from schedd.api.errors import OutcomeUnclear, unanswered
from schedd.api.services import Caller, Services
from schedd.core.ids import JobId
from schedd.core.runs.deadlines import START_WITHIN
from schedd.core.runs.model import LiveRun
from schedd.core.runs.records import JobRecord
from schedd.core.timers import pre_dispatch
from schedkit.errors import Unavailable

CLOCKS_DIFFER: Final = timedelta(seconds=0.5)
"""By which a worker's reading of cluster time may be behind this member's."""
LONGEST: Final = pre_dispatch.MOST + START_WITHIN
"""From an assignment to the last moment at which it may start."""


@asynccontextmanager
async def kept(services: Services, what: str) -> AsyncIterator[None]:
    """Around a change and all that its `ok` waits for: PostgreSQL didn't fail over meanwhile.

    Raises:
        OutcomeUnclear: it did, so that the change may be lost, or it doesn't say.
    """
    before = (await services.membership.probe()).timeline
    yield
    try:
        after = await services.membership.probe()
    except Unavailable as away:
        raise _failed_over(f"PostgreSQL went away while {what} was changed") from away
    newest = max(after.timeline, services.cluster.view().timeline)
    if after.in_recovery or newest != before:
        raise _failed_over(f"PostgreSQL failed over while {what} was changed")


@contextmanager
def after_commit() -> Iterator[None]:
    """Around what a call still reads or writes when its change is made already: a world that goes
    away in there is no reason to call again.

    Raises:
        OutcomeUnclear: it did.
    """
    try:
        yield
    except Unavailable as away:
        raise unanswered() from away


async def settle(
    services: Services,
    caller: Caller,
    record: JobRecord,
    *,
    may_start: int | None = None,
) -> None:
    """Tell the owner, and wait until nothing of the old definition can start any more; attempts
    of generation `may_start` and later may.
    """
    stored = record.definition
    what = stored.name or str(stored.job_id)
    services.nudges.jobs_changed([(stored.job_id, record.shard)])
    out = await unstarted(services, stored.job_id, what)
    old = [run for run in out if may_start is None or run.generation < may_start]
    await revoke(services, caller, old, what)


async def unstarted(
    services: Services, job_id: JobId | None, what: str, pool: tuple[str, str] | None = None
) -> list[LiveRun]:
    """Attempts of a job, of a pool (namespace and name), or of all jobs, that may still start
    though `what` was changed.
    """
    now = services.clock.now() - CLOCKS_DIFFER
    try:
        return await services.store.unstarted_attempts(job_id, now, pool)
    except Unavailable as away:
        raise _attempts_out(what, LONGEST) from away


async def revoke(services: Services, caller: Caller, out: Sequence[LiveRun], what: str) -> None:
    """Return when none of these attempts can start any more.

    Raises:
        OutcomeUnclear: the caller can't wait so long.
    """
    if not out:
        return
    try:
        async with asyncio.timeout(caller.deadline):
            await services.lines.revoke(out)
    except TimeoutError:
        last = max((run.start_by for run in out if run.start_by), default=services.clock.now())
        raise _attempts_out(what, last - services.clock.now()) from None


def _failed_over(told: str) -> OutcomeUnclear:
    return OutcomeUnclear(
        f"{told}: the change may be lost",
        reason="FAILED_OVER",
        remedy="see whether it is as it should be, and call again if it isn't",
    )


def _attempts_out(what: str, within: timedelta) -> OutcomeUnclear:
    seconds = max(1, math.ceil((within + CLOCKS_DIFFER).total_seconds()))
    return OutcomeUnclear(
        f"{what} was changed, but a run of it may still start",
        reason="ATTEMPTS_OUT",
        remedy=f"it can't start later than {seconds} s from now; call again to be sure",
    )
