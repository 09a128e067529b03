"""Backfills: what is run, what is left out, how many at once, and how they end.

The calls and the rows are the real ones; what the owner of the job's shard would do is done here,
a step at a time (`Past.fed`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api.errors import (
    AbortedError,
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from schedd.core.events import EndedUnreported
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun, OverlapCandidates
from schedd.core.timers.backfill import OpenBackfill
from schedproto.v1 import common_pb2, job_pb2, run_pb2
from schedproto.v1 import job_service_pb2 as wire
from schedproto.v1.cluster_service_pb2 import PauseClusterRequest
from schedproto.v1.run_service_pb2 import ExplainRunRequest, ListRunsRequest, RetryRunRequest
from support.store import MINUTE, START, Member, draft, firing, report
from support.wait import WAIT_TIMEOUT

SHELL = job_pb2.ShellAction(argv=["true"])
HOUR = timedelta(hours=1)
Rerun = wire.BackfillJobRequest.Rerun


@dataclass
class Past:
    """A job `j`, each minute, whose schedule has accounted for all before START + 1 h."""

    api: Any
    me: Member = field(init=False)

    def __post_init__(self) -> None:
        self.me = self.api.world.members[0]

    async def made(self, **changes: Any) -> None:
        values = {"name": "j", "shell": SHELL, "cron": ["* * * * *"], **changes}
        await self.api("CreateJob", wire.CreateJobRequest(job=job_pb2.Job(**values)))
        next_ = START + HOUR
        await self.api.world.sql(
            "UPDATE timers SET due_at = %s, nominal = %s RETURNING 1", next_, next_
        )

    async def backfill(
        self, first: int = 0, last: int = 2, **changes: Any
    ) -> wire.BackfillJobResponse:
        """From `first` to `last` minutes after START."""
        request = wire.BackfillJobRequest(job="j", to=stamp(at(last)), **changes)
        getattr(request, "from").CopyFrom(stamp(at(first)))
        answer = await self.api("BackfillJob", request)
        assert isinstance(answer, wire.BackfillJobResponse)
        return answer

    async def fed(self, me: Member | None = None) -> list[LiveRun]:
        """Return the runs that an owner makes in one step, oldest first."""
        me = me or self.me
        wanted = await me.store.owner.backfills([*me.epochs])
        return await feed(me, wanted)

    async def ran(self, run: LiveRun, state: State = State.SUCCEEDED, **how: Any) -> None:
        """Dispatch the run, and end it in `state`."""
        [handed] = await self.me.assigned(draft(run, **how))
        await self.me.store.results.accept([report(handed, state=state)])

    async def scheduled(self, minute: int) -> LiveRun:
        """The schedule's own run of an instant; its timer stands as before."""
        record = await self.api.services.store.get_job("default", "j")
        await self.api.world.sql("UPDATE timers SET due_at = %s RETURNING 1", at(minute))
        [run] = (await self.me.fire(firing(record, at=at(minute)))).runs
        next_ = START + HOUR
        await self.api.world.sql(
            "UPDATE timers SET due_at = %s, nominal = %s RETURNING 1", next_, next_
        )
        return run

    async def now(self, answer: wire.BackfillJobResponse) -> wire.Backfill:
        """How it stands."""
        request = wire.GetBackfillRequest(backfill_id=answer.backfill.backfill_id)
        found = await self.api("GetBackfill", request)
        assert isinstance(found, wire.Backfill)
        return found

    async def cancel(self, answer: wire.BackfillJobResponse) -> wire.Backfill:
        request = wire.CancelBackfillRequest(backfill_id=answer.backfill.backfill_id)
        found = await self.api("CancelBackfill", request)
        assert isinstance(found, wire.Backfill)
        return found

    async def runs(self, **where: Any) -> list[run_pb2.Run]:
        return list((await self.api("ListRuns", ListRunsRequest(**where))).runs)


async def feed(me: Member, wanted: list[OpenBackfill]) -> list[LiveRun]:
    if not wanted:
        return []
    made = await me.store.owner.feed(me.claim(*{one.shard for one in wanted}), wanted)
    return sorted(made, key=lambda run: run.key.scheduled_at)


def at(minute: int) -> datetime:
    return START + minute * MINUTE


def stamp(instant: datetime) -> Timestamp:
    made = Timestamp()
    made.FromDatetime(instant)
    return made


def minutes(stamps: Iterable[Timestamp]) -> list[float]:
    """Which minutes after START these are."""
    return [(one.ToDatetime(START.tzinfo) - START) / MINUTE for one in stamps]


def of(runs: Iterable[LiveRun]) -> list[float]:
    return [(run.key.scheduled_at - START) / MINUTE for run in runs]


def omitted_times(answer: wire.BackfillJobResponse) -> dict[float, str]:
    return {minutes([one.scheduled_at])[0]: one.why for one in answer.omitted}


@pytest.fixture
async def past(api: Any) -> Past:
    made = Past(api)
    await made.made()
    return made


# ── what is run ──────────────────────────────────────────────────────────────────────────────────


async def test_a_dry_run_lists_the_instants_from_the_first_to_the_last_and_stores_nothing(
    past: Past,
) -> None:
    answer = await past.backfill(0, 3, dry_run=True)

    assert minutes(answer.instants) == [0, 1, 2, 3]
    assert not answer.HasField("backfill")
    assert await past.fed() == []
    assert await past.api.world.sql("SELECT 1 FROM backfills") == []


async def test_backfill_runs_have_past_scheduled_times_and_are_due_when_created(
    past: Past,
) -> None:
    answer = await past.backfill(0, 0)
    [run] = await past.fed()

    [seen] = await past.runs()
    assert minutes([seen.scheduled_at]) == [0]
    assert seen.due_at.ToDatetime(START.tzinfo) - past.api.clock.now() < MINUTE
    assert seen.run_id == str(run.key.run_id)
    assert (seen.trigger, seen.priority) == (run_pb2.Run.TRIGGER_BACKFILL, common_pb2.PRIORITY_LOW)
    assert seen.backfill_id == answer.backfill.backfill_id
    assert past.api.nudged.shards


async def test_the_previous_version_reads_backfill_runs_as_manual_runs(past: Past) -> None:
    await past.backfill(0, 0)
    [run] = await past.fed()

    assert (await past.api.world.run_row(run.key.run_id))["trigger"] == "MANUAL"


async def test_a_backfill_creates_its_runs_one_at_a_time_in_order(past: Past) -> None:
    answer = await past.backfill(0, 2)

    for minute in range(3):
        [run] = await past.fed()
        assert of([run]) == [minute]
        assert await past.fed() == []
        assert (await past.now(answer)).not_created == 2 - minute
        await past.ran(run)

    done = await past.now(answer)
    assert (done.state, done.total, done.succeeded) == (wire.Backfill.STATE_DONE, 3, 3)


async def test_a_backfill_keeps_max_parallel_runs_whatever_their_outcome(past: Past) -> None:
    answer = await past.backfill(0, 9, max_parallel=3, overlap=job_pb2.OVERLAP_ALLOW)

    first = await past.fed()
    assert of(first) == [0, 1, 2]
    await past.ran(first[1], State.FAILED, overlap=Overlap.ALLOW, overlap_limit=0)
    [second] = await past.fed()
    assert of([second]) == [3]
    now = await past.now(answer)
    assert (now.state, now.waiting, now.failed) == (wire.Backfill.STATE_ACTIVE, 3, 1)
    assert now.not_created == 6


async def test_the_next_owner_counts_the_runs_that_the_previous_one_made(past: Past) -> None:
    """P3.18: what there is of it is counted on rows."""
    await past.backfill(0, 9, max_parallel=2, overlap=job_pb2.OVERLAP_ALLOW)
    wanted = await past.me.store.owner.backfills([*past.me.epochs])
    assert len(await feed(past.me, wanted)) == 2
    before = dict(past.me.epochs)

    other = await past.api.world.member(take=False)
    await past.me.store.membership.fence_own(past.me.tenure)
    await other.take()
    past.me.epochs.update(before)

    assert await feed(other, wanted) == []
    assert await feed(past.me, wanted) == [], "it was fenced"


async def test_concurrent_steps_of_a_backfill_create_no_extra_run(past: Past) -> None:
    """P3.18: under the lock of the job's shard."""
    await past.backfill(0, 9, max_parallel=2, overlap=job_pb2.OVERLAP_ALLOW)
    wanted = await past.me.store.owner.backfills([*past.me.epochs])

    made = await asyncio.gather(*(feed(past.me, wanted) for _ in range(4)))

    assert sorted(of(run for runs in made for run in runs)) == [0, 1]


async def test_a_backfill_continues_while_its_job_is_paused_but_not_the_cluster(
    past: Past,
) -> None:
    await past.backfill(0, 2)
    await past.api("PauseJob", wire.PauseJobRequest(job="j"))
    [run] = await past.fed()
    await past.ran(run, generation=2)

    await past.api("PauseCluster", PauseClusterRequest())
    assert await past.fed() == []


async def test_a_backfill_keeps_its_scheduled_times_after_an_edit_of_the_schedule(
    past: Past,
) -> None:
    await past.backfill(0, 1)
    edit = job_pb2.Job(name="j", cron=["0 0 1 1 *"])
    request = wire.UpdateJobRequest(job=edit)
    request.update_mask.paths.append("cron")
    await past.api("UpdateJob", request)

    [run] = await past.fed()
    assert (of([run]), run.generation) == ([0], 2)


# ── what is left out ─────────────────────────────────────────────────────────────────────────────


async def test_instants_that_ran_are_left_out_unless_a_rerun_is_requested(past: Past) -> None:
    await past.ran(await past.scheduled(1))
    await past.ran(await past.scheduled(2), State.FAILED)

    plain = await past.backfill(0, 3, dry_run=True)
    failed = await past.backfill(0, 3, dry_run=True, rerun=Rerun.Value("RERUN_FAILED"))
    all_ = await past.backfill(0, 3, dry_run=True, rerun=Rerun.Value("RERUN_ALL"))

    assert minutes(plain.instants) == [0, 3]
    assert omitted_times(plain) == {
        1: "a run of this time succeeded; to run it again, use rerun all",
        2: "a run of this time failed; to run it again, use rerun failed",
    }
    assert [one.state for one in plain.omitted] == [
        common_pb2.RUN_STATE_SUCCEEDED,
        common_pb2.RUN_STATE_FAILED,
    ]
    assert minutes(failed.instants) == [0, 2, 3]
    assert minutes(all_.instants) == [0, 1, 2, 3]


async def test_skipped_or_missed_instants_are_run(past: Past) -> None:
    record = await past.api.services.store.get_job("default", "j")
    await past.api.world.sql("UPDATE timers SET due_at = %s RETURNING 1", at(1))
    step = firing(record, at=at(1))
    missed = replace(step.runs[0], state=State.MISSED, count=1, scheduled_until=at(1))
    await past.me.fire(replace(step, runs=(missed,), next_due_at=at(60), next_nominal=at(60)))

    assert minutes((await past.backfill(0, 2, dry_run=True)).instants) == [0, 1, 2]


async def test_a_backfill_leaves_out_times_that_another_backfill_ran(past: Past) -> None:
    await past.backfill(1, 1)
    [run] = await past.fed()
    await past.ran(run)

    assert minutes((await past.backfill(0, 2, dry_run=True)).instants) == [0, 2]


async def test_a_backfill_does_not_rerun_a_dead_letter_that_was_retried(past: Past) -> None:
    """Its retry counts as a run of its instant."""
    dead = await past.scheduled(1)
    await past.ran(dead, State.FAILED)
    await past.api("RetryRun", RetryRunRequest(run_id=str(dead.key.run_id)))
    failed = {"dry_run": True, "rerun": Rerun.Value("RERUN_FAILED")}

    assert omitted_times(await past.backfill(1, 1, **failed)) == {
        1: "a run of this time is in progress"
    }
    [again] = await past.me.store.owner.live_runs([*past.me.epochs], [State.PENDING])
    await past.ran(again)
    assert omitted_times(await past.backfill(1, 1, **failed)) == {
        1: "a run of this time succeeded; to run it again, use rerun all"
    }


async def test_instants_in_progress_or_in_a_backfill_are_left_out_for_any_request(
    past: Past,
) -> None:
    await past.scheduled(0)
    await past.backfill(1, 2)
    await past.fed()

    answer = await past.backfill(0, 3, rerun=Rerun.Value("RERUN_ALL"))

    assert minutes(answer.instants) == [3]
    assert omitted_times(answer) == {
        0: "a run of this time is in progress",
        1: "a run of this time is in progress",
        2: "another backfill will run this time",
    }


async def test_concurrent_backfills_share_no_scheduled_time(past: Past) -> None:
    answers = await asyncio.gather(*(past.backfill(0, 19) for _ in range(4)))

    assert sorted(minute for one in answers for minute in minutes(one.instants)) == [*range(20)]


async def test_a_backfill_leaves_out_future_times_unless_the_job_is_paused(
    past: Past,
) -> None:
    assert omitted_times(await past.backfill(59, 61, dry_run=True)) == {
        60: "the job's schedule will still run this time",
        61: "the job's schedule will still run this time",
    }

    await past.api("PauseJob", wire.PauseJobRequest(job="j"))
    assert minutes((await past.backfill(59, 61, dry_run=True)).instants) == [59, 60, 61]


async def test_excluded_times_arent_instants_of_a_job(api: Any) -> None:
    past = Past(api)
    await past.made(exclude=job_pb2.Exclude(cron=["1 * * * *"]))

    answer = await past.backfill(0, 3, dry_run=True)

    assert (minutes(answer.instants), omitted_times(answer)) == ([0, 2, 3], {})


async def test_a_backfill_of_an_ended_schedule_leaves_its_count_unchanged(api: Any) -> None:
    past = Past(api)
    await past.made(max_runs=1)
    await api.world.sql("UPDATE timers SET due_at = NULL, fired = 1 RETURNING 1")

    answer = await past.backfill(59, 61)
    [run] = await past.fed()
    await past.ran(run)

    assert minutes(answer.instants) == [59, 60, 61]
    assert await api.world.sql("SELECT fired, due_at FROM timers") == [(1, None)]


async def test_a_backfill_without_times_to_run_is_done_at_once(past: Past) -> None:
    await past.ran(await past.scheduled(0))

    answer = await past.backfill(0, 0)

    assert (list(answer.instants), answer.backfill.state) == ([], wire.Backfill.STATE_DONE)


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


async def test_a_range_of_too_many_instants_is_refused_with_their_number(past: Past) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        await past.backfill(-10_000, 0)

    assert (
        "the range of the backfill has 10,001 scheduled times; at most 10,000 are allowed"
        in str(refused.value.message)
    )
    assert refused.value.reason == "TOO_MANY_INSTANTS"
    assert len((await past.backfill(-9_999, 0, dry_run=True)).instants) == 10_000


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"last": -1}, "to: is before from; both are inclusive"),
        ({"last": 60 * 24 * 366 * 100}, "to: is in the future: a backfill ends by now"),
        ({"max_parallel": 2}, "max_parallel: is 2 with overlap: skip, which would drop"),
        ({"max_parallel": -1}, "max_parallel: must be from 1 to 1,000, not -1"),
        ({"max_parallel": 1_001}, "max_parallel: must be from 1 to 1,000, not 1001"),
    ],
)
async def test_a_dry_run_rejects_an_invalid_backfill_too(
    past: Past, changes: dict[str, Any], problem: str
) -> None:
    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError) as refused:
            await past.backfill(**changes, dry_run=dry_run)
        assert refused.value.message.startswith(problem)


@pytest.mark.parametrize("year", [1, 1969])
async def test_a_range_begins_in_1970_or_later(past: Past, year: int) -> None:
    request = wire.BackfillJobRequest(job="j", to=stamp(START))
    getattr(request, "from").CopyFrom(stamp(datetime(year, 1, 1, tzinfo=START.tzinfo)))

    with pytest.raises(InvalidArgumentError, match=r"from: .* must be from 1970-01-01"):
        await past.api("BackfillJob", request)


@pytest.mark.parametrize("cron", [["* * * * * *"], ["* * * * *", "*/7 * * * *"]])
async def test_a_range_of_any_size_over_the_limit_is_rejected_quickly(
    api: Any, cron: list[str]
) -> None:
    past = Past(api)
    await past.made(cron=cron, time_zone="Europe/Berlin")
    request = wire.BackfillJobRequest(job="j", to=stamp(START))
    getattr(request, "from").CopyFrom(stamp(datetime(1970, 1, 1, tzinfo=START.tzinfo)))
    began = asyncio.get_running_loop().time()

    with pytest.raises(InvalidArgumentError, match="at most 10,000 are allowed"):
        await past.api("BackfillJob", request)
    assert asyncio.get_running_loop().time() - began < 5


async def test_both_ends_must_be_named(past: Past) -> None:
    with pytest.raises(InvalidArgumentError, match="from: is missing"):
        await past.api("BackfillJob", wire.BackfillJobRequest(job="j", to=stamp(START)))


async def test_a_range_without_an_instant_is_refused(api: Any) -> None:
    past = Past(api)
    await past.made(cron=["0 0 1 1 *"])

    with pytest.raises(InvalidArgumentError) as refused:
        await past.backfill(1, 2)
    assert refused.value.reason == "NO_INSTANTS"


async def test_a_backfill_aborts_if_the_job_is_edited_meanwhile(past: Past) -> None:
    record = await past.api.services.store.get_job("default", "j")
    seen = replace(record, definition=replace(record.definition, generation=7))

    async def old(namespace: str, job: str) -> Any:
        return seen

    class Stale:
        def __getattr__(self, name: str) -> Any:
            return old if name == "get_job" else getattr(past.me.store.users, name)

    past.api.services = replace(past.api.services, store=Stale())
    with pytest.raises(AbortedError):
        await past.backfill()


# ── the same again, and the end ──────────────────────────────────────────────────────────────────


async def test_the_same_key_gives_the_same_backfill_however_far_it_is(past: Past) -> None:
    first = await past.backfill(0, 2, idempotency_key="k")
    [run] = await past.fed()
    await past.ran(run)

    again = await past.backfill(0, 2, idempotency_key="k")

    assert again.backfill.backfill_id == first.backfill.backfill_id
    assert again.instants == first.instants
    assert again.backfill.succeeded == 1
    with pytest.raises(AlreadyExistsError):
        await past.backfill(0, 3, idempotency_key="k")


async def test_a_canceled_backfill_creates_no_more_runs_and_ends_existing_ones(past: Past) -> None:
    """P3.18: under the lock of the backfill's row."""
    answer = await past.backfill(0, 9, max_parallel=2, overlap=job_pb2.OVERLAP_ALLOW)
    runs, waits = await past.fed()
    await past.me.assigned(draft(runs, overlap=Overlap.ALLOW, overlap_limit=0))
    wanted = [OpenBackfill(*row) for row in await _open(past)]

    now = await past.cancel(answer)

    assert (now.state, now.not_created) == (wire.Backfill.STATE_CANCELLED, 0)
    assert (now.running, now.cancelled, now.cancelled_by) == (1, 1, "tester")
    assert past.api.lines.cancelled == [runs.key.run_id]
    assert (await past.api.world.run_row(waits.key.run_id))["reason"] == "BY_USER"
    assert not await past.api.world.is_live(waits.key.run_id)
    assert await feed(past.me, wanted) == []
    assert (await past.cancel(answer)).cancelled_at == now.cancelled_at
    assert past.api.events == [EndedUnreported(State.CANCELLED, Reason.BY_USER, 1)]
    [(before, after)] = await past.api.world.sql(
        "SELECT before, after FROM audit WHERE action = 'cancel'"
    )
    assert json.loads(before) == {"namespace": "default", "job": answer.backfill.job} | {
        "created": 2,
        "notCreated": 8,
    }
    assert json.loads(after) == {"cancelled": 1, "cancelling": 1}


async def _open(past: Past) -> list[tuple[Any, ...]]:
    """Whether or not there is room."""
    return await past.api.world.sql(
        "SELECT backfill_id, job_id, shard FROM backfills JOIN timers USING (job_id)"
    )


async def test_a_finished_backfill_cant_be_cancelled(past: Past) -> None:
    answer = await past.backfill(0, 0)
    [run] = await past.fed()
    await past.ran(run)

    with pytest.raises(FailedPreconditionError):
        await past.cancel(answer)
    assert (await past.now(answer)).state == wire.Backfill.STATE_DONE


async def test_a_backfill_ends_when_its_job_is_deleted(past: Past) -> None:
    """P3.18: it holds the job's timer."""
    answer = await past.backfill(0, 2)
    [run] = await past.fed()
    await past.api("DeleteJob", wire.DeleteJobRequest(job="j"))

    assert await past.fed() == []
    now = await past.now(answer)
    assert (now.state, now.cancelled) == (wire.Backfill.STATE_CANCELLED, 1)
    assert (await past.api.world.run_row(run.key.run_id))["reason"] == "DELETED"


# ── how it is seen ───────────────────────────────────────────────────────────────────────────────


async def test_runs_are_found_by_their_trigger(past: Past) -> None:
    own = await past.scheduled(5)
    one = await past.backfill(0, 0)
    two = await past.backfill(1, 1)
    made = {run.key.scheduled_at: str(run.key.run_id) for run in await past.fed()}
    triggered = await past.api("TriggerJob", wire.TriggerJobRequest(job="j"))

    async def found(**where: Any) -> list[str]:
        return [run.run_id for run in await past.runs(**where)]

    assert await found(trigger=run_pb2.Run.TRIGGER_BACKFILL) == [made[at(1)], made[at(0)]]
    assert await found(trigger=run_pb2.Run.TRIGGER_MANUAL) == [triggered.run_id]
    assert await found(trigger=run_pb2.Run.TRIGGER_SCHEDULE) == [str(own.key.run_id)]
    assert await found(backfill_id=one.backfill.backfill_id) == [made[at(0)]]
    assert await found(backfill_id=two.backfill.backfill_id, job="j") == [made[at(1)]]
    assert await found(trigger=run_pb2.Run.TRIGGER_CHAIN) == []
    with pytest.raises(InvalidArgumentError, match="isn't the id of a backfill"):
        await found(backfill_id="j")


async def test_backfills_are_listed_newest_first_a_page_at_a_time(past: Past) -> None:
    made = [(await past.backfill(n, n)).backfill.backfill_id for n in range(3)]

    first = await past.api("ListBackfills", wire.ListBackfillsRequest(job="j", page_size=2))
    token = first.next_page_token
    second = await past.api("ListBackfills", wire.ListBackfillsRequest(job="j", page_token=token))

    assert [one.backfill_id for one in (*first.backfills, *second.backfills)] == made[::-1]
    assert second.next_page_token == ""
    with pytest.raises(InvalidArgumentError, match="another"):
        await past.api("ListBackfills", wire.ListBackfillsRequest(page_token=token))
    with pytest.raises(NotFoundError):
        await past.api("ListBackfills", wire.ListBackfillsRequest(job="nobody"))


@pytest.mark.parametrize("call", ["GetBackfill", "CancelBackfill"])
async def test_a_missing_backfill_isnt_found(api: Any, call: str) -> None:
    request = getattr(wire, f"{call}Request")
    with pytest.raises(NotFoundError):
        await api(call, request(backfill_id="00000000-0000-0000-0000-000000000001"))
    with pytest.raises(InvalidArgumentError):
        await api(call, request(backfill_id="j"))


async def test_an_instant_shows_its_backfilled_run_beside_its_own_row(past: Past) -> None:
    await past.ran(await past.scheduled(0), State.FAILED)
    answer = await past.backfill(0, 1, rerun=Rerun.Value("RERUN_FAILED"))
    [run] = await past.fed()
    backfill = answer.backfill.backfill_id

    first = await past.api("ExplainInstant", wire.ExplainInstantRequest(job="j", at=stamp(at(0))))
    second = await past.api("ExplainInstant", wire.ExplainInstantRequest(job="j", at=stamp(at(1))))

    assert first.run.state == common_pb2.RUN_STATE_FAILED
    assert [one.run_id for one in first.backfilled] == [str(run.key.run_id)]
    assert first.answer.endswith(
        f" Backfill {backfill} created run {run.key.run_id} for it, which is PENDING now."
    )
    assert second.answer.endswith(f" Backfill {backfill} will run it: no run has been created yet.")
    assert not second.backfilled


async def test_the_audit_names_actor_and_request(past: Past) -> None:
    answer = await past.backfill(0, 2)

    [(actor, object_, after)] = await past.api.world.sql(
        "SELECT actor, object, after FROM audit WHERE action = 'backfill'"
    )
    assert (actor, object_) == ("tester", "job/default/j")
    assert f'"backfill":"{answer.backfill.backfill_id}","from":"2026-01-05T12:00:00Z"' in after


# ── beside the schedule's own runs ───────────────────────────────────────────────────────────────


async def test_a_job_that_allows_overlap_blocks_no_backfill(past: Past) -> None:
    await past.backfill(0, 0, overlap=job_pb2.OVERLAP_ALLOW)
    [backfilled] = await past.fed()
    await past.me.assigned(draft(backfilled))
    own = await past.scheduled(30)

    assert len(await past.me.assigned(draft(own))) == 1, "its job says skip"


async def test_a_run_with_cancel_other_does_not_cancel_a_backfill_run_with_allow(api: Any) -> None:
    past = Past(api)
    await past.made(overlap=job_pb2.OVERLAP_CANCEL_OTHER)
    await past.backfill(0, 0, overlap=job_pb2.OVERLAP_ALLOW)
    [backfilled] = await past.fed()
    await past.me.assigned(draft(backfilled))
    await api("TriggerJob", wire.TriggerJobRequest(job="j"))
    [own] = await past.me.store.owner.live_runs([*past.me.epochs], [State.PENDING])
    assert own.due_at > backfilled.due_at

    crowd = OverlapCandidates(own.job_id, own.shard, 1, Overlap.CANCEL_OTHER, past.api.clock.now())
    parted = await past.me.store.owner.part(past.me.claim(own.shard), [crowd])
    assert (parted.ended, parted.cancelled) == ([], [])
    assert len(await past.me.assigned(draft(own, overlap=Overlap.CANCEL_OTHER))) == 1


async def test_an_explanation_names_no_backfill_run_with_allow_as_the_blocker(api: Any) -> None:
    past = Past(api)
    await past.made(overlap=job_pb2.OVERLAP_BUFFER_ONE)
    await past.backfill(0, 0, overlap=job_pb2.OVERLAP_ALLOW)
    [backfilled] = await past.fed()
    await past.me.assigned(draft(backfilled))
    own = await past.scheduled(30)

    why = await api("ExplainRun", ExplainRunRequest(run_id=str(own.key.run_id)))

    answers = {check.question: check.answer for check in why.checks}
    assert answers["Do other runs of its job block it (overlap: buffer_one)?"] == "no"


async def test_a_backfill_run_with_the_jobs_policy_blocks_like_any_other_run(past: Past) -> None:
    await past.backfill(0, 0)
    [backfilled] = await past.fed()
    await past.me.assigned(draft(backfilled))
    own = await past.scheduled(30)

    answer = await past.me.assign(draft(own))
    assert (answer.assigned, answer.ended) == ([], [own.key])


async def test_a_watch_reports_its_progress_until_no_run_is_left(past: Past) -> None:
    answer = await past.backfill(0, 1, max_parallel=2, overlap=job_pb2.OVERLAP_ALLOW)
    watch = wire.WatchBackfillRequest(backfill_id=answer.backfill.backfill_id)
    async with asyncio.timeout(WAIT_TIMEOUT):
        stream = past.api.stream("WatchBackfill", watch)
        assert (await anext(stream)).not_created == 2
        first, second = await past.fed()
        made = await anext(stream)
        assert (made.waiting, made.not_created) == (2, 0)
        await past.ran(first, overlap=Overlap.ALLOW, overlap_limit=0)
        await past.ran(second, State.FAILED, overlap=Overlap.ALLOW, overlap_limit=0)
        *_, last = [each async for each in stream]
    assert (last.state, last.succeeded, last.failed) == (wire.Backfill.STATE_DONE, 1, 1)
    assert last == await past.now(answer)


async def test_a_watch_reports_a_cancelled_backfill_until_its_runs_have_ended(past: Past) -> None:
    answer = await past.backfill(0, 1)
    [run] = await past.fed()
    [handed] = await past.me.assigned(draft(run))
    await past.cancel(answer)
    watch = wire.WatchBackfillRequest(backfill_id=answer.backfill.backfill_id)
    async with asyncio.timeout(WAIT_TIMEOUT):
        stream = past.api.stream("WatchBackfill", watch)
        going = await anext(stream)
        assert (going.state, going.running) == (wire.Backfill.STATE_CANCELLED, 1)
        await past.me.store.results.accept([report(handed)])
        assert [each.running async for each in stream] == [0]


async def test_a_watch_of_an_unknown_backfill_fails_at_once(past: Past) -> None:
    with pytest.raises(NotFoundError, match="not found"):
        await anext(
            past.api.stream("WatchBackfill", wire.WatchBackfillRequest(backfill_id=str(uuid4())))
        )
