"""Why did it run, or not, then: each answer is of a row that a real database holds.

The steps of timers are the owner's own (`owner.fire`), their rows the statement's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api.errors import InvalidArgumentError, NotFoundError
from schedd.core.runs.model import LiveRun, Timer
from schedd.core.runs.records import JobRecord
from schedd.runtime.job_codec import JobDefinition
from schedd.timers.timer_steps import firing_of
from schedproto.v1 import job_pb2, run_service_pb2
from schedproto.v1 import job_service_pb2 as wire
from schedproto.v1.cluster_service_pb2 import PauseClusterRequest, ResumeClusterRequest
from support.definitions import cached_definition
from support.store import MINUTE, START, Member, draft, report

SHELL = job_pb2.ShellAction(argv=["true"])
DAY = timedelta(days=1)
MEMBER = "member-1"


@dataclass
class Past:
    """A job `j` that was made a day before START and is next due at START, each minute."""

    api: Any

    async def made(self, *, since: datetime = START - DAY, **changes: Any) -> None:
        values = {"name": "j", "shell": SHELL, "cron": ["* * * * *"], **changes}
        await self.api("CreateJob", wire.CreateJobRequest(job=job_pb2.Job(**values)))
        await self.sql("UPDATE jobs SET created_at = %s, updated_at = %s", since, since)
        await self.sql("UPDATE timers SET due_at = %s, nominal = %s", START, START)

    async def sql(self, statement: str, *arguments: Any) -> None:
        await self.api.world.sql(f"{statement} RETURNING 1", *arguments)

    async def record(self) -> JobRecord:
        record = await self.api.services.store.get_job("default", "j")
        assert record is not None
        return record

    async def fire(self, now: datetime) -> list[LiveRun]:
        """Act as its owner would in a scan at `now`."""
        record = await self.record()
        stored = record.definition
        definition = JobDefinition.read(stored)
        known = cached_definition(definition.parsed, definition.schedule)
        timer = Timer(
            *(stored.job_id, record.shard, stored.generation, record.due_at, record.nominal)
        )
        paused = await self.api.services.pauses.read()
        step = firing_of(timer, known, now, paused)
        me = self.api.world.members[0]
        claim = me.claim(record.shard)
        return (await me.store.owner.fire(claim, [step], paused.switched)).runs

    async def ran(self, run: LiveRun, started: datetime) -> None:
        """A worker runs it, and says so."""
        me = self.api.world.members[0]
        [assigned] = await me.assigned(draft(run))
        result = replace(report(assigned), started_at=started, finished_at=started + MINUTE)
        await me.store.results.accept([result])

    async def overlapped(self) -> tuple[Member, LiveRun, LiveRun]:
        """The run of START is under way when that of the next minute is dispatched."""
        me = self.api.world.members[0]
        [first] = await self.fire(START)
        await me.assigned(draft(first))
        [second_run] = await self.fire(START + MINUTE)
        await me.assign(draft(second_run))
        return me, first, second_run

    async def asked(self, at: datetime) -> wire.ExplainInstantResponse:
        stamp = Timestamp()
        stamp.FromDatetime(at)
        return await self.api("ExplainInstant", wire.ExplainInstantRequest(job="j", at=stamp))

    async def rows_gone(self) -> None:
        for table in ("live", "runs"):
            await self.sql(f"DELETE FROM {table}")


@pytest.fixture
def past(api: Any) -> Past:
    return Past(api)


def second(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("late", "how"),
    [
        (0.25, "The job ran on time: due 2026-01-05T12:00:00Z, started 250 ms later"),
        (12.5, "The job ran late: due 2026-01-05T12:00:00Z, started 12.5 s later"),
    ],
)
async def test_the_answer_for_a_past_run_says_if_it_was_late(past, late, how):
    await past.made()
    [run] = await past.fire(START)
    await past.ran(run, START + second(late))
    found = await past.asked(START)
    assert found.answer.startswith(how)
    assert "on worker-1, attempt 1; the run is SUCCEEDED." in found.answer
    assert found.answer.endswith(f"Read from run {run.key.run_id}.")
    assert found.run.run_id == str(run.key.run_id)


async def test_a_dispatched_run_hasnt_reported_its_start(past):
    await past.made()
    [run] = await past.fire(START)
    await past.api.world.members[0].assigned(draft(run))
    found = await past.asked(START)
    assert found.answer.startswith("The run was dispatched to worker-1, which hasn't reported")


async def test_a_run_lost_with_its_worker_has_no_reported_start(past):
    """A person who acts on it may repeat by hand what the lost run had done."""
    await past.made()
    [run] = await past.fire(START)
    await past.api.world.members[0].assigned(draft(run))
    await past.sql("UPDATE runs SET state = 'FAILED', reason = 'WORKER_LOST', finished_at = now()")
    found = await past.asked(START)
    assert found.answer.startswith("No start was reported: it ended as FAILED (WORKER_LOST")


async def test_the_answer_for_a_waiting_run_refers_to_run_why(past):
    await past.made()
    [run] = await past.fire(START)
    found = await past.asked(START)
    assert f"schedctl run why {run.key.run_id}" in found.answer


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("ALL", "the run is late: late runs of jobs with catch_up: all are"),
        ("LATEST", "the run is late: runs that are due now have priority."),
    ],
)
async def test_late_runs_wait_behind_runs_due_now_and_say_so(past, policy, words):
    chosen = job_pb2.CatchUp.Policy.Value(f"POLICY_{policy}")
    await past.made(catch_up=job_pb2.CatchUp(policy=chosen))
    now = START + second(30)
    [run] = await past.fire(now)
    assert (run.due_at, run.ready_at, run.late) == (START, now, True)
    assert run.paced == (policy == "ALL")

    found = await past.asked(START)
    assert words in found.answer
    why = await past.api("ExplainRun", run_service_pb2.ExplainRunRequest(run_id=found.run.run_id))
    assert why.checks[-1].question == "Is the run late?"
    assert words.rstrip(".") in why.checks[-1].answer


async def test_the_answer_for_a_skip_by_overlap_names_the_other_run(past):
    await past.made()
    me, first, second_run = await past.overlapped()
    found = await past.asked(START + MINUTE)
    assert found.answer.startswith("The run was skipped (OVERLAP): another run of the job hadn't")
    assert f"overlap: skip: run {first.key.run_id}. Read from run {second_run.key.run_id}, wr" in (
        found.answer
    )
    assert found.answer.endswith(f" by {MEMBER}.")
    assert (found.run.excluded_by, found.run.fired_by) == (f"run {first.key.run_id}", MEMBER)
    assert found.run.tenure == str(me.tenure)


async def test_the_answer_names_the_window_for_missed_and_coalesced_times(past):
    await past.made(catch_up=job_pb2.CatchUp(window=Duration(seconds=600)))
    [run] = await past.fire(START + timedelta(hours=1))
    missed = await past.asked(START + 5 * MINUTE)
    assert missed.answer.startswith("The run was missed (WINDOW): it was later than the")
    assert "The window is 10 min now." in missed.answer
    assert "which covers 50 scheduled times from 2026-01-05T12:00:00Z to" in missed.answer
    assert missed.run.count == 50

    merged = await past.asked(START + 55 * MINUTE)
    assert merged.answer.startswith("The run was coalesced: ")
    assert f"2026-01-05T13:00:00Z, covers it: run {run.key.run_id}, PENDING" in merged.answer
    assert merged.run.count == 10


async def test_a_coalesced_time_names_its_run_across_excluded_times(past):
    await past.made(exclude=job_pb2.Exclude(cron=["55-58 12 * * *"]))
    [run] = await past.fire(START + timedelta(hours=1))
    excluded = await past.asked(START + 56 * MINUTE)
    assert excluded.answer.startswith("The run was skipped by ")
    found = await past.asked(START + 50 * MINUTE)
    assert f"2026-01-05T13:00:00Z, covers it: run {run.key.run_id}, PENDING." in found.answer


async def test_the_answer_for_a_missed_time_names_catch_up_none(past):
    await past.made(catch_up=job_pb2.CatchUp(policy=job_pb2.CatchUp.POLICY_NONE))
    await past.fire(START + timedelta(hours=1))
    assert "The run was missed (CATCH_UP_NONE)" in (await past.asked(START)).answer


async def test_a_pause_is_explained_with_author_time_and_note_during_and_after_it(past):
    await past.made()
    await past.api("PauseJob", wire.PauseJobRequest(job="j", note="disk is full"))
    during = await past.asked(START)
    assert during.answer.startswith("The job didn't run: it is paused by tester since ")
    assert ": disk is full. A row is written when the job is resumed." in during.answer
    assert not during.HasField("run")

    await past.sql("UPDATE jobs SET paused_at = %s", START - MINUTE)
    await past.api("ResumeJob", wire.ResumeJobRequest(job="j"))
    after = await past.asked(START + MINUTE)
    assert after.answer.startswith(
        "The run was skipped by a pause by tester since 2026-01-05T11:59:00Z: disk is full. Read"
    )
    assert after.run.count > 1000


async def test_the_pause_at_that_time_is_named_though_the_job_is_paused_again(past):
    await past.made()
    await past.api("PauseJob", wire.PauseJobRequest(job="j", note="disk is full"))
    await past.sql("UPDATE jobs SET paused_at = %s", START - MINUTE)
    await past.api("ResumeJob", wire.ResumeJobRequest(job="j"))
    await past.api("PauseJob", wire.PauseJobRequest(job="j", note="on holiday"))
    found = await past.asked(START + MINUTE)
    assert found.answer.startswith(
        "The run was skipped by a pause by tester since 2026-01-05T11:59:00Z"
    )
    assert "disk is full" in found.answer


async def test_pausing_again_without_a_note_keeps_the_present_note(past):
    await past.made()
    await past.api("PauseJob", wire.PauseJobRequest(job="j", note="disk is full"))
    until = Timestamp(seconds=4_000_000_000)
    paused = await past.api("PauseJob", wire.PauseJobRequest(job="j", until=until))
    assert paused.pause_note == "disk is full"
    other = await past.api("PauseJob", wire.PauseJobRequest(job="j", note="on holiday"))
    assert other.pause_note == "on holiday"


async def test_the_pause_of_a_job_created_paused_is_named_after_its_end(past):
    await past.made(paused=True, pause_note="until the move")
    await past.sql("UPDATE jobs SET paused_at = %s", START - MINUTE)
    await past.api("ResumeJob", wire.ResumeJobRequest(job="j"))
    found = await past.asked(START)
    assert "skipped by a pause by tester since 2026-01-05T11:59:00Z: until the move" in found.answer


async def test_a_cluster_pause_that_was_caught_up_is_not_named_as_the_cause(past):
    await past.made()
    await past.api("PauseJob", wire.PauseJobRequest(job="j", note="disk is full"))
    await past.sql("UPDATE audit SET at = %s WHERE action = 'pause'", START - MINUTE)
    await past.api("PauseCluster", PauseClusterRequest(note="moving house"))
    await past.api("ResumeCluster", ResumeClusterRequest(catch_up=True))
    await past.sql("UPDATE pauses SET began = %s", START - MINUTE)
    await past.api("ResumeJob", wire.ResumeJobRequest(job="j"))
    assert "disk is full" in (await past.asked(START + MINUTE)).answer


async def test_a_pause_of_the_cluster_is_explained_too(past):
    await past.made()
    await past.api("PauseCluster", PauseClusterRequest(note="moving house"))
    assert "the cluster is paused by tester" in (await past.asked(START)).answer
    await past.api("ResumeCluster", ResumeClusterRequest())
    await past.sql("UPDATE pauses SET began = %s, ended = %s", START - MINUTE, START + MINUTE)
    assert await past.fire(START + MINUTE) == []
    found = await past.asked(START)
    assert found.answer.startswith("The run was skipped by a pause of the cluster by tester since")
    assert "moving house" in found.answer


async def test_an_edit_that_replaces_the_schedule_is_explained(past):
    await past.made()
    changed = job_pb2.Job(name="j", cron=["0 0 1 1 *"])
    await past.api(
        "UpdateJob", wire.UpdateJobRequest(job=changed, update_mask=FieldMask(paths=["cron"]))
    )
    found = await past.asked(START + MINUTE)
    assert found.answer.startswith("The run was missed (EDITED): the job was edited")
    assert "a new schedule begins with the edit: an edit by tester. The schedule of" in found.answer
    assert (
        "The schedule of that time isn't kept: this may not have been a scheduled time."
        in found.answer
    )


async def test_the_answer_for_a_time_before_the_creation_says_so(past):
    await past.made()
    found = await past.asked(START - 2 * DAY)
    assert found.answer.startswith(
        "The time is before the job was created (2026-01-04T12:00:00Z by tester)."
    )
    assert f"Read from the row of job {(await past.record()).definition.job_id}." in found.answer


async def test_the_answer_for_an_unscheduled_time_names_the_nearest_times(past):
    await past.made()
    found = await past.asked(START + second(30))
    assert found.answer.startswith(
        "2026-01-05T12:00:30Z isn't a scheduled time of this job: the previous one is "
        "2026-01-05T12:00:00Z, the next is 2026-01-05T12:01:00Z."
    )


async def test_a_time_within_a_merged_row_is_not_thereby_a_scheduled_time(past):
    await past.made()
    await past.fire(START + timedelta(hours=1))
    found = await past.asked(START + second(90))
    assert "isn't a scheduled time of this job" in found.answer
    assert not found.HasField("run")


async def test_the_answer_for_a_time_after_the_end_names_the_end(past):
    end = Timestamp()
    end.FromDatetime(datetime(2040, 1, 1))  # noqa: DTZ001 - protobuf's own form: naive is UTC
    await past.made(end=end)
    later = datetime.fromisoformat("2041-01-01T00:00:00+00:00")
    assert "job: the schedule ended 2040-01-01T00:00:00Z." in (await past.asked(later)).answer


async def test_a_future_time_and_a_due_unfired_time_have_different_answers(past):
    await past.made()
    ahead = (past.api.clock.now() + DAY).replace(second=0, microsecond=0)
    assert (await past.asked(ahead)).answer.startswith("The run is in the future: due ")
    await past.fire(START)
    waiting = await past.asked(START + MINUTE)  # not covered by the row of the instant before
    assert waiting.answer.startswith("The job hasn't fired yet: its timer is at 2026-01")


async def test_a_manual_run_at_that_moment_is_not_the_schedules(past):
    await past.made()
    await past.api("TriggerJob", wire.TriggerJobRequest(job="j"))
    await past.sql("UPDATE runs SET scheduled_at = %s", START - MINUTE)
    assert (await past.asked(START - MINUTE)).answer.startswith("There is no record")


async def test_an_instant_with_deleted_rows_has_no_record(past):
    await past.made(catch_up=job_pb2.CatchUp(window=Duration(seconds=600)))
    [run] = await past.fire(START + timedelta(hours=1))
    await past.ran(run, START + timedelta(hours=1))
    moments = (START, START + 55 * MINUTE, START + timedelta(hours=1))  # missed, coalesced, ran
    for moment in moments:
        assert (await past.asked(moment)).HasField("run")
    await past.rows_gone()
    for moment in moments:
        found = await past.asked(moment)
        assert found.answer.startswith("There is no record: 2026-01-05T1")
        assert "is a scheduled time of the current schedule, but no row covers it" in found.answer
        assert not found.HasField("run")


async def test_a_skipped_instant_with_a_deleted_row_has_no_record(past):
    await past.made()
    [first] = await past.fire(START)
    await past.ran(first, START)
    await past.api("PauseJob", wire.PauseJobRequest(job="j", note="disk is full"))
    await past.sql("UPDATE jobs SET paused_at = %s", START)
    await past.api("ResumeJob", wire.ResumeJobRequest(job="j"))
    assert "skipped by a pause" in (await past.asked(START + MINUTE)).answer
    await past.rows_gone()
    assert (await past.asked(START + MINUTE)).answer.startswith("There is no record")


async def test_an_overlap_with_a_deleted_row_has_no_record(past):
    await past.made()
    _, _, second_run = await past.overlapped()
    assert "(OVERLAP)" in (await past.asked(START + MINUTE)).answer
    await past.sql("DELETE FROM runs WHERE run_id = %s", second_run.key.run_id)
    assert (await past.asked(START + MINUTE)).answer.startswith("There is no record")


async def test_an_invalid_query_is_refused(past):
    await past.made()
    with pytest.raises(InvalidArgumentError, match="at: is missing"):
        await past.api("ExplainInstant", wire.ExplainInstantRequest(job="j"))
    with pytest.raises(NotFoundError):
        await past.api(
            "ExplainInstant", wire.ExplainInstantRequest(job="k", at=Timestamp(seconds=1))
        )
