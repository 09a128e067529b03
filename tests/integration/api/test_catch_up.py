"""An outage of ten minutes, caught up with by the owner's own loops on a real database.

Here alone the pace is looked at by a clock of the test's: whole clusters are in `acceptance`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from schedd.core.runs.model import LiveRun
from schedd.core.timers.catch_up_limits import CatchUpLimits
from schedd.timers.fire import FireLoop
from schedd.timers.timer_loader import TimerLoader
from schedproto.v1 import job_pb2
from schedproto.v1 import job_service_pb2 as wire
from support.real_owner import RealOwner
from support.runs import worker
from support.store import Member, report

JOBS = 20
"""Of each policy."""
STEP = timedelta(minutes=2)
OUTAGE = 5 * STEP
SLOTS = 10
RATE = 40.0


@dataclass
class Owner:
    """A member's loops, one after the other, and a worker whose runs end at once."""

    me: Member
    seconds: float = 0.0
    """On the pace's clock."""
    went: list[tuple[float, LiveRun]] = field(default_factory=list)
    under_way: list[LiveRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = CatchUpLimits(RATE, reserved=0.2)
        parts = RealOwner(self.me, limits, boot=lambda: self.seconds)
        self.run_index, self.workers, self.dispatch = parts.run_index, parts.workers, parts.dispatch
        self.near = TimerLoader(parts.context)
        self.fire = FireLoop(parts.context, self.near, self.dispatch.placeable, parts.assigner)
        self.line, self.attached = parts.attach(worker(slots=SLOTS))

    async def round(self, seconds: float = 0.1) -> list[LiveRun]:
        """Fire due timers, dispatch what may start, and end what was dispatched before. Return what
        was dispatched now.
        """
        self.seconds += seconds
        for run in self.under_way:
            await self.me.store.results.accept([report(run)])
            self.run_index.forget(run.key.run_id, run.job_id)
        received = len(self.line.assigned)
        self.workers.granted(self.attached, SLOTS, received=received)
        self.near.reload()
        await self.near.step()
        for _ in range(20):
            if await self.fire.step() > 0:
                break
        for _ in range(20):
            if await self.dispatch.step() > 0:
                break
        self.under_way = self.line.assigned[received:]
        self.went += [(self.seconds, run) for run in self.under_way]
        return self.under_way


@pytest.fixture
async def owner(api: Any) -> Owner:
    return Owner(api.world.members[0])


async def after_an_outage(api: Any) -> tuple[list[datetime], datetime]:
    """Create jobs of each policy that no owner scanned for so long; return their missed times,
    and the next one.
    """
    phase = int((datetime.now(UTC).timestamp() - 30) % STEP.total_seconds())
    for policy in ("ALL", "LATEST", "NONE"):
        for number in range(JOBS):
            job = job_pb2.Job(
                name=f"{policy.lower()}-{number}",
                shell=job_pb2.ShellAction(argv=["true"]),
                every=Duration(seconds=round(STEP.total_seconds())),
                phase=Duration(seconds=phase),
                catch_up=job_pb2.CatchUp(policy=job_pb2.CatchUp.Policy.Value(f"POLICY_{policy}")),
                overlap=job_pb2.OVERLAP_ALLOW,
            )
            await api("CreateJob", wire.CreateJobRequest(job=job))
    [(coming,)] = await api.world.sql("SELECT DISTINCT nominal FROM timers")
    await api.world.sql(
        "UPDATE timers SET due_at = due_at - %s, nominal = nominal - %s RETURNING 1",
        *(OUTAGE, OUTAGE),
    )
    return [coming - OUTAGE + STEP * number for number in range(5)], coming


def most_within(went: Sequence[tuple[float, LiveRun]], seconds: float) -> int:
    return max(sum(begin <= at <= begin + seconds + 1e-6 for at, _ in went) for begin, _ in went)


async def test_each_catch_up_policy_applies_after_an_outage_beside_runs_due_now(
    api: Any, owner: Owner
) -> None:
    missed, coming = await after_an_outage(api)
    on_time = wire.CreateJobRequest(
        job=job_pb2.Job(
            name="each-second",
            shell=job_pb2.ShellAction(argv=["true"]),
            every=Duration(seconds=1),
            overlap=job_pb2.OVERLAP_ALLOW,
        )
    )
    tick = (await api("CreateJob", on_time)).job_id

    names = dict(await api.world.sql("SELECT job_id, name FROM jobs"))
    for _ in range(200):
        handed = await owner.round()
        paced = [run for run in handed if names[run.job_id].startswith("all")]
        assert len(paced) <= SLOTS * 0.8
        waits = [run for run in owner.run_index.ready if str(run.job_id) == tick]
        assert not waits, "what is due now goes at once"
        [(behind,)] = await api.world.sql(
            "SELECT (SELECT count(*) FROM timers WHERE nominal < %s AND job_id <> %s)"
            " + (SELECT count(*) FROM live WHERE job_id <> %s)",
            *(coming, tick, tick),
        )
        if not behind:
            break
    assert not behind
    while not any(str(run.job_id) == tick for _, run in owner.went):
        await asyncio.sleep(0.05)
        await owner.round()

    rows = await api.world.sql(
        "SELECT j.name, r.scheduled_at, r.state, r.reason, r.count, r.scheduled_until"
        " FROM runs r JOIN jobs j USING (job_id) WHERE j.name <> 'each-second'"
        " ORDER BY j.name, r.scheduled_at"
    )
    rows_of: dict[str, list[tuple[Any, ...]]] = {}
    for name, *row in rows:
        rows_of.setdefault(name, []).append(tuple(row))
    first, last = missed[0], missed[-1]
    for number in range(JOBS):
        assert rows_of[f"all-{number}"] == [(at, "SUCCEEDED", None, 1, None) for at in missed]
        assert rows_of[f"none-{number}"] == [(first, "MISSED", "CATCH_UP_NONE", 5, last)]
        assert rows_of[f"latest-{number}"] == [
            (first, "COALESCED", None, 4, missed[3]),
            (last, "SUCCEEDED", None, 1, None),
        ]

    released = [(at, run) for at, run in owner.went if names[run.job_id].startswith("all")]
    assert len(released) == JOBS * len(missed)
    for seconds in (0.1, 1.0, 2.0):
        assert most_within(released, seconds) <= RATE * (seconds + 1)
    by_job: dict[str, list[datetime]] = {}
    for _, run in released:
        by_job.setdefault(names[run.job_id], []).append(run.due_at)
    assert all(due == sorted(due) for due in by_job.values()), "each in order"
    counts = Counter(names[run.job_id].partition("-")[0] for _, run in owner.went)
    assert counts["latest"] == JOBS
    assert counts["each"] >= 1


async def test_buffered_runs_start_in_scheduled_order_late_or_not(api: Any, owner: Owner) -> None:
    job = job_pb2.Job(
        name="in-line",
        shell=job_pb2.ShellAction(argv=["true"]),
        every=Duration(seconds=1),
        catch_up=job_pb2.CatchUp(policy=job_pb2.CatchUp.POLICY_ALL),
        overlap=job_pb2.OVERLAP_BUFFER_ALL,
    )
    await api("CreateJob", wire.CreateJobRequest(job=job))
    back = timedelta(seconds=6)
    await api.world.sql(
        "UPDATE timers SET due_at = due_at - %s, nominal = nominal - %s RETURNING 1", back, back
    )
    began = datetime.now(UTC)
    for _ in range(60):
        await owner.round()
        if len(owner.went) >= 8:
            break
        await asyncio.sleep(0.05)
    due = [run.due_at for _, run in owner.went]
    assert len(due) >= 8, "none of them stands in the others' way"
    assert due == sorted(due)
    assert due[0] < began - timedelta(seconds=4), "the first that was missed is the first to run"
    assert due[-1] > began, "what fell due meanwhile waited its turn"
