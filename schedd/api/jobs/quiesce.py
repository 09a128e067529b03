"""Quiesce a job after a pause, edit or delete: `ok` waits until each dispatched attempt was
returned, has started, or has expired (docs/protocol-rules.md, P3.8).

    probe ─→ change, COMMIT ─→ dispatched attempts ─→ revoke, or wait for expiry ─→ probe ─→ ok
      └──────────────── same PostgreSQL timeline? else: outcome unknown ───────────┘

Invariants
- After a failover of PostgreSQL the call reports an unknown outcome: the promoted standby may lack
  the change.
- An error after the COMMIT never claims that nothing was changed.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Final

from schedd.api.errors import OutcomeUnknownError, unanswered
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
async def failover_check(services: Services, what: str) -> AsyncIterator[None]:
    """Check that PostgreSQL doesn't fail over during a change and the wait after it.

    Raises:
        OutcomeUnknownError: it did, so the change may be lost; or it doesn't answer.
    """
    before = (await services.membership.probe()).timeline
    yield
    try:
        after = await services.membership.probe()
    except Unavailable as away:
        raise _failed_over(
            f"the change of {what} may be lost: PostgreSQL became unavailable before it"
            " confirmed the change"
        ) from away
    newest = max(after.timeline, services.cluster.view().timeline)
    if after.in_recovery or newest != before:
        raise _failed_over(
            f"the change of {what} may be lost: a standby of PostgreSQL was promoted meanwhile"
        )


@contextmanager
def after_commit() -> Iterator[None]:
    """Wrap the reads and writes of a call after its change was committed. A dependency that fails
    there must not look as if nothing was changed.

    Raises:
        OutcomeUnknownError: a dependency failed.
    """
    try:
        yield
    except Unavailable as away:
        raise unanswered() from away


async def quiesce_job(
    services: Services, caller: Caller, record: JobRecord, *, may_start: int | None = None
) -> None:
    """Notify the owner, and wait until nothing of the old definition can start any more. Attempts
    of generation `may_start` and later may start.
    """
    stored = record.definition
    what = f"job {stored.name or stored.job_id}"
    services.wake_ups.jobs_changed([(stored.job_id, record.shard)])
    out = await unstarted(services, stored.job_id, what)
    old = [run for run in out if may_start is None or run.generation < may_start]
    await revoke(services, caller, old, what)


async def unstarted(
    services: Services, job_id: JobId | None, what: str, pool: tuple[str, str] | None = None
) -> list[LiveRun]:
    """Return the dispatched attempts of a job, of a pool (namespace and name), or of all jobs, that
    may still start after the change of `what`.
    """
    now = services.clock.now() - CLOCKS_DIFFER
    try:
        return await services.store.unstarted_attempts(job_id, now, pool)
    except Unavailable as away:
        raise _attempts_out(what, LONGEST) from away


async def revoke(services: Services, caller: Caller, out: Sequence[LiveRun], what: str) -> None:
    """Wait until none of these attempts can start any more.

    Raises:
        OutcomeUnknownError: the caller's deadline is earlier.
    """
    if not out:
        return
    try:
        async with asyncio.timeout(caller.deadline):
            await services.lines.revoke(out)
    except TimeoutError:
        last = max((run.start_by for run in out if run.start_by), default=services.clock.now())
        raise _attempts_out(what, last - services.clock.now()) from None


def _failed_over(event: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{event}: the change may be lost",
        reason="FAILED_OVER",
        remedy="check whether the change was made; if not, call again",
    )


def _attempts_out(what: str, within: timedelta) -> OutcomeUnknownError:
    seconds = max(1, math.ceil((within + CLOCKS_DIFFER).total_seconds()))
    return OutcomeUnknownError(
        f"the change of {what} is stored, but a run that was dispatched before the change may"
        " still start",
        reason="ATTEMPTS_OUT",
        remedy=f"no run can start later than {seconds} s from now; call again to be sure",
    )
