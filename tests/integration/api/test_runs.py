"""Calls on runs, on a real database."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, timedelta
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.duration_pb2 import Duration

from schedd.api import calls
from schedd.api.errors import (
    AlreadyExistsError,
    CallError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from schedd.api.services import Caller
from schedd.core.cluster.cluster_events import EventKind
from schedd.core.cluster.membership import EMPTY_VIEW
from schedd.core.events import EndedUnreported
from schedd.core.ids import Id, JobId
from schedd.core.runs.lifecycle import LIVE, Reason, State
from schedd.core.runs.model import AuditRecord, Incarnation, Verdict
from schedd.core.runs.records import WorkerView
from schedd.store.connection.database import in_transaction
from schedd.store.runs import runs as stored_runs
from schedproto.v1 import cluster_service_pb2, common_pb2, job_pb2, run_pb2
from schedproto.v1 import run_service_pb2 as wire
from support.callers import TESTER
from support.definitions import requested
from support.store import draft, incarnation, report

HOUR = timedelta(hours=1)
SPEC = job_pb2.Job(shell=job_pb2.ShellAction(argv=["true"]))


def submit(**changes: Any) -> wire.SubmitRunRequest:
    return wire.SubmitRunRequest(**{"spec": SPEC, **changes})


async def test_a_submitted_run_is_pending_and_its_owner_notified(api):
    run = await api("SubmitRun", submit(name="etl"))
    assert (run.state, run.job, run.job_id) == (common_pb2.RUN_STATE_PENDING, "etl", "")
    assert len(api.nudged.shards) == 1
    assert (await api("GetRun", wire.GetRunRequest(run_id=run.run_id))).run_id == run.run_id


@pytest.mark.parametrize(
    ("retry", "attempts"),
    [
        (None, 1),
        (job_pb2.RetryPolicy(), 1),
        (job_pb2.RetryPolicy(max_attempts=3), 3),
        (job_pb2.RetryPolicy(backoff=Duration(seconds=5)), 4),
        (job_pb2.RetryPolicy(retry_on=["75"]), 4),
    ],
)
async def test_a_submit_without_retry_options_tries_once(api, retry, attempts):
    spec = job_pb2.Job(shell=SPEC.shell, retry=retry)
    run = await api("SubmitRun", submit(spec=spec))
    batch = wire.BatchSubmitRunsRequest(requests=[submit(spec=spec)])
    [many] = (await api("BatchSubmitRuns", batch)).results
    for run_id in (run.run_id, many.run.run_id):
        [[spec]] = await api.world.sql("SELECT spec FROM jobs WHERE job_id = %s", run_id)
        stored = requested(job_pb2.Job.FromString(bytes(spec))).parsed
        assert stored.retry.max_attempts == attempts


async def test_an_equal_submit_is_checked_and_recorded_as_its_own(api):
    first = await api("SubmitRun", submit(name="one", request_id="r1"))
    other = Caller(replace(TESTER, name="another"), "test")
    [call] = [call for name, call in calls.UNARY.items() if name.endswith(".SubmitRun")]
    second = await call(api.services, other, submit(name="two", request_id="r2"))
    assert (first.job, second.job) == ("one", "two")
    assert first.run_id != second.run_id
    rows = await api.world.sql(
        "SELECT j.created_by, a.actor, a.source FROM jobs j JOIN audit a ON a.run_id = j.job_id"
        " ORDER BY a.seq"
    )
    assert rows == [
        ("tester", "tester", "test request:r1"),
        ("another", "another", "test request:r2"),
    ]
    for wrong in (submit(name="-"), submit(name="x" * 300), submit(delay=Duration(seconds=-1))):
        with pytest.raises(InvalidArgumentError):
            await api("SubmitRun", wrong)


async def test_the_owner_receives_the_definition_that_a_read_would_return(api):
    spec = job_pb2.Job(shell=SPEC.shell, slots=3)
    one = await api("SubmitRun", submit(name="once", spec=spec))
    batch = wire.BatchSubmitRunsRequest(requests=[submit(spec=spec)])
    many = await api("BatchSubmitRuns", batch)
    jobs = [JobId(Id.parse(run.run_id)) for run in (one, many.results[0].run)]
    read = await api.world.store.users.definitions(jobs)
    received = [replace(each, retention=None) for each in api.nudged.definitions]
    assert [read[job] for job in jobs] == received


async def test_a_repeated_submit_passes_no_definition_to_the_owner(api):
    request = submit(idempotency_key="k")
    batch = wire.BatchSubmitRunsRequest(requests=[request])
    for _ in range(2):
        await api("SubmitRun", request)
        await api("BatchSubmitRuns", batch)
    assert len(api.nudged.definitions) == 1


async def test_the_same_key_and_body_give_the_same_run(api):
    first = await api("SubmitRun", submit(idempotency_key="k"))
    again = await api("SubmitRun", submit(idempotency_key="k", request_id="another try"))
    assert again.run_id == first.run_id
    with pytest.raises(AlreadyExistsError):
        await api("SubmitRun", submit(idempotency_key="k", name="other"))
    assert len(await api.world.sql("SELECT 1 FROM runs")) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        submit(spec=job_pb2.Job()),
        submit(spec=job_pb2.Job(shell=SPEC.shell, cron=["* * * * *"])),
        submit(spec=job_pb2.Job(shell=SPEC.shell, paused=True)),
        submit(spec=job_pb2.Job(shell=SPEC.shell, namespace="elsewhere")),
        submit(spec=job_pb2.Job(shell=SPEC.shell, priority=99)),
        submit(spec=job_pb2.Job(shell=SPEC.shell, kill_after=Duration(seconds=1 << 61))),
        submit(delay=Duration(seconds=-5)),
        submit(delay=Duration(seconds=1 << 61)),
        submit(name="No Name"),
        submit(namespace="no/namespace"),
    ],
)
async def test_a_wrong_submit_is_refused_and_nothing_is_stored(api, wrong):
    with pytest.raises(InvalidArgumentError):
        await api("SubmitRun", wrong)
    assert await api.world.sql("SELECT 1 FROM jobs") == []


async def test_a_waiting_run_is_cancelled_at_once_and_twice_is_fine(api):
    run = await api("SubmitRun", submit())
    for _ in range(2):
        cancelled = await api("CancelRun", wire.CancelRunRequest(run_id=run.run_id))
        assert cancelled.state == common_pb2.RUN_STATE_CANCELLED
    assert api.lines.cancelled == []
    assert api.events == [EndedUnreported(State.CANCELLED, Reason.BY_USER, 1)]


@pytest.mark.parametrize("meanwhile", [False, True])
async def test_a_cancel_that_begins_again_is_counted_once_if_it_ended_the_run(
    api, monkeypatch, meanwhile
):
    cancel, tries = stored_runs.cancel_run, []

    def rolled_back(connection, run_id, *noted):
        tries.append(run_id)
        if len(tries) == 1:
            cancel(connection, run_id, *noted)
            connection.exec_driver_sql("DO $$BEGIN RAISE serialization_failure; END$$")
        elif meanwhile:
            connection.exec_driver_sql("UPDATE runs SET state = 'CANCELLED'")
        return cancel(connection, run_id, *noted)

    run = await api("SubmitRun", submit())
    monkeypatch.setattr(type(api.services.store), "cancel_run", in_transaction(rolled_back))
    cancelled = await api("CancelRun", wire.CancelRunRequest(run_id=run.run_id))
    assert (len(tries), cancelled.state) == (2, common_pb2.RUN_STATE_CANCELLED)
    assert api.events == [EndedUnreported(State.CANCELLED, Reason.BY_USER, 1)] * (not meanwhile)


async def test_a_running_run_is_marked_and_its_worker_notified(api):
    run = await api("SubmitRun", submit())
    me = api.world.members[0]
    [live] = await me.store.owner.live_runs([*me.epochs], list(LIVE))
    [assigned] = await me.assigned(draft(live, generation=1))

    marked = await api("CancelRun", wire.CancelRunRequest(run_id=run.run_id))
    assert marked.state == common_pb2.RUN_STATE_RUNNING
    assert [str(each) for each in api.lines.cancelled] == [run.run_id]
    assert api.events == [], "it is counted when its worker has ended it"

    await me.store.results.accept([report(assigned)])
    ended = await api("GetRun", wire.GetRunRequest(run_id=run.run_id))
    assert ended.state == common_pb2.RUN_STATE_CANCELLED


async def test_a_succeeded_run_cannot_be_cancelled(api):
    run = await api("SubmitRun", submit())
    me = api.world.members[0]
    [live] = await me.store.owner.live_runs([*me.epochs], list(LIVE))
    [assigned] = await me.assigned(draft(live, generation=1))
    await me.store.results.accept([report(assigned)])
    with pytest.raises(FailedPreconditionError):
        await api("CancelRun", wire.CancelRunRequest(run_id=run.run_id))


async def test_lists_continue_where_they_ended_and_keep_to_their_states(api):
    runs = [(await api("SubmitRun", submit())).run_id for _ in range(5)]
    await api("CancelRun", wire.CancelRunRequest(run_id=runs[0]))
    found: list[str] = []
    token = ""
    for _ in range(2):
        page = await api(
            "ListRuns",
            wire.ListRunsRequest(
                page_size=2, page_token=token, states=[common_pb2.RUN_STATE_PENDING]
            ),
        )
        found += [run.run_id for run in page.runs]
        token = page.next_page_token
    assert (found, token) == (runs[:0:-1], "")


@pytest.mark.parametrize("name", ["GetRun", "CancelRun", "ListAttempts", "ExplainRun"])
async def test_an_unknown_run_isnt_found_and_an_invalid_id_is_refused(api, name):
    request = getattr(wire, f"{name}Request")
    with pytest.raises(NotFoundError):
        await api(name, request(run_id=str(uuid4())))
    for wrong in ("", "x", "Ü" * 5_000):
        with pytest.raises(InvalidArgumentError):
            await api(name, request(run_id=wrong))


@pytest.mark.parametrize("number", [-1, 2**63, int("9" * 4_000)])
async def test_an_audit_page_token_with_an_impossible_number_is_rejected(api, number):
    token = base64.urlsafe_b64encode(str(number).encode()).decode()
    with pytest.raises(CallError):
        await api("ListAudit", cluster_service_pb2.ListAuditRequest(page_token=token))


async def test_every_change_is_in_the_audit(api):
    run = await api("SubmitRun", submit())
    await api("CancelRun", wire.CancelRunRequest(run_id=run.run_id))
    page = await api("ListAudit", cluster_service_pb2.ListAuditRequest())
    assert [entry.action for entry in page.entries] == ["cancel", "submit"]


@pytest.mark.parametrize("follow", [False, True])
async def test_an_attempt_that_a_run_hasnt_has_no_log(api, follow):
    run = await api("SubmitRun", submit())
    [read] = [call for full, call in calls.STREAMING.items() if full.endswith(".ReadLogs")]
    refusals = {
        5: (NotFoundError, "attempt with fencing token 5"),
        -1: (InvalidArgumentError, "fencing_token: -1 is out of range"),
    }
    for token, (error, text) in refusals.items():
        asked = wire.ReadLogsRequest(run_id=run.run_id, fencing_token=token, follow=follow)
        with pytest.raises(error, match=text):
            _ = [piece async for piece in read(api.services, Caller(TESTER, "test"), asked)]


async def test_the_reason_of_a_cancel_is_in_the_audit(api):
    run = await api("SubmitRun", submit())
    await api("CancelRun", wire.CancelRunRequest(run_id=run.run_id, reason="no longer wanted"))
    page = await api("ListAudit", cluster_service_pb2.ListAuditRequest(action="cancel"))
    after = {"state": "CANCELLED", "reason": "no longer wanted"}
    assert [json.loads(entry.after) for entry in page.entries] == [after]


async def test_a_cancel_that_changes_nothing_isnt_audited(api):
    run = await api("SubmitRun", submit())
    for _ in range(2):
        await api("CancelRun", wire.CancelRunRequest(run_id=run.run_id))
    done = await api("SubmitRun", submit())
    await api.world.sql("UPDATE runs SET state = 'SUCCEEDED' WHERE run_id = %s", done.run_id)
    with pytest.raises(FailedPreconditionError, match="already ended"):
        await api("CancelRun", wire.CancelRunRequest(run_id=done.run_id, reason="late"))
    page = await api("ListAudit", cluster_service_pb2.ListAuditRequest(action="cancel"))
    assert [entry.run_id for entry in page.entries] == [run.run_id]


async def test_a_run_that_needs_more_slots_than_any_worker_has_is_explained(api):
    registered = incarnation(slots=2)
    api.lines.attached = [WorkerView(registered, False, free=2, running=0, lease_age=0.0)]
    spec = job_pb2.Job(shell=job_pb2.ShellAction(argv=["true"]), slots=99)
    run = await api("SubmitRun", wire.SubmitRunRequest(spec=spec))
    why = await api("ExplainRun", wire.ExplainRunRequest(run_id=run.run_id))
    (check,) = [one for one in why.checks if one.question == "Can a worker execute the run?"]
    assert check.answer == "no connected worker runs jobs of 99 slots: the largest has 2"


async def test_a_run_that_each_worker_rejected_is_explained(api):
    run = await api("SubmitRun", submit())
    one, other = incarnation(), incarnation(worker="worker-2")
    api.lines.attached = [
        WorkerView(each, False, free=2, running=0, lease_age=0.0) for each in (one, other)
    ]

    async def why(*refused: Incarnation) -> wire.ExplainRunResponse:
        api.lines.refused = {each.id: "no cgroup" for each in refused}
        return await api("ExplainRun", wire.ExplainRunRequest(run_id=run.run_id))

    by_all = await why(one, other)
    assert by_all.answer == "The run waits: all suitable workers (2) have rejected it: no cgroup."
    assert by_all.refused
    by_one = await why(one)
    assert not by_one.refused
    assert "yes, 1 can, 1 has rejected it: no cgroup" in [each.answer for each in by_one.checks]
    by_none = await why()
    assert not by_none.refused
    assert "yes, 2 can" in [each.answer for each in by_none.checks]


async def test_a_run_is_explained_when_its_workers_disks_are_full(api):
    run = await api("SubmitRun", submit())
    full = "spool rejects writes: No space left on device"
    one = WorkerView(incarnation(), False, free=2, running=0, lease_age=0.0, refusal_reason=full)
    other = replace(one, incarnation=incarnation(worker="worker-2"))

    async def why(*attached: WorkerView) -> wire.ExplainRunResponse.Check:
        api.lines.attached = [*attached]
        answer = await api("ExplainRun", wire.ExplainRunRequest(run_id=run.run_id))
        return answer.checks[-1]

    alone = await why(one)
    assert alone.answer == f"no, worker-1 accepts no runs: {full}"
    assert alone.remedy.startswith("free space on the spool's disk")
    blocked = "handlers block all 8 event loops of this worker: export"
    both = (await why(one, replace(other, refusal_reason=blocked))).remedy
    assert both.startswith("worker-1: free space on the spool's disk")
    assert "; worker-2: 1. pause the jobs of the handler" in both
    leaving = await why(one, replace(other, draining=True))
    assert leaving.answer == f"no, worker-1 accepts no runs: {full} (worker-2 draining)"
    busy = await why(one, replace(other, refusal_reason="", free=0))
    assert busy.answer == (
        f"no, all slots of 2 workers are in use (worker-1 accepts no runs: {full})"
    )
    assert busy.remedy == "schedctl run list --state RUNNING --worker worker-2"
    assert (await why(one, replace(other, refusal_reason=""))).answer == "yes, 2 can"
    held = await why(replace(one, refusal_reason="", free=0))
    assert held.answer == "no, all slots of worker-1 are in use"
    assert held.remedy == "schedctl run list --state RUNNING --worker worker-1"
    of_both = await why(
        replace(one, refusal_reason="", free=0), replace(other, refusal_reason="", free=0)
    )
    assert of_both.remedy == "schedctl run list --state RUNNING"


async def test_a_run_whose_worker_sends_no_heartbeats_is_explained(api):
    run = await api("SubmitRun", submit())
    one = incarnation()
    await api.world.store.workers.register(one)
    api.cluster.now = replace(EMPTY_VIEW, workers=frozenset({one.id}))

    async def why() -> wire.ExplainRunResponse.Check:
        answer = await api("ExplainRun", wire.ExplainRunRequest(run_id=run.run_id))
        return answer.checks[-1]

    assert (await why()).answer == "no, no member receives heartbeats of worker-1"
    busy = WorkerView(incarnation(worker="worker-2"), False, 0, running=1, lease_age=0.0)
    api.lines.attached = [busy]
    answer = "no, all slots of 2 workers are in use (no member receives heartbeats of worker-1)"
    assert (await why()).answer == answer
    api.lines.attached = [replace(busy, free=1)]
    assert (await why()).answer == "yes, 2 can"
    api.lines.attached = [WorkerView(one, False, 1, running=0, lease_age=0.0, silent=40.2)]
    assert (await why()).answer == "no, worker-1 has sent no heartbeat for 40 s"


async def test_a_run_is_explained_when_its_only_worker_is_lost_or_drained_and_stopped(api):
    """The worker is listed by name, and no answer leaves it out."""
    spec = job_pb2.Job(shell=SPEC.shell, require=[common_pb2.LabelMatch(key="k", any_of=["nine"])])
    run = await api("SubmitRun", wire.SubmitRunRequest(spec=spec))
    store = api.world.store.workers
    had = incarnation(worker="w9", labels={"k": "nine"})
    for each in (
        had,
        incarnation(worker="w8", labels={"k": "nine"}),
        incarnation(worker="w8", labels={"k": "ten"}, started_at=had.started_at + HOUR),
        incarnation(worker="w7", labels={"k": "nine"}),
    ):
        await store.register(each)
    await store.note_seen([had.id])
    await store.lose([had.id], EventKind.WORKER_LOST)
    api.lines.attached = [WorkerView(incarnation(), False, 1, running=0, lease_age=0.0)]

    async def why() -> wire.ExplainRunResponse.Check:
        answer = await api("ExplainRun", wire.ExplainRunRequest(run_id=run.run_id))
        return answer.checks[-1]

    no_worker = "no connected worker runs shell jobs and has k=nine"
    lost = await why()
    assert lost.answer == f"{no_worker}; w9 could, but is lost"
    assert lost.remedy == "start worker w9 again"
    entry = AuditRecord("ops", "drain", "worker", "ok")
    for name in ("w8", "w9"):
        await store.drain(name, "ops", "", lambda *_: entry)
    found = await why()
    assert found.answer == f"{no_worker}; w9 could, but is drained and stopped"
    assert found.remedy == "start worker w9, then run `schedctl worker undrain w9`"


async def test_losses_of_a_run_are_counted_against_a_bound_that_is_shown(api):
    run = await api("SubmitRun", submit())
    await api.world.sql("UPDATE runs SET losses = 3 WHERE run_id = %s RETURNING 1", run.run_id)
    why = await api("ExplainRun", wire.ExplainRunRequest(run_id=run.run_id))
    [check] = [one for one in why.checks if one.question == "Was the worker lost during the run?"]
    assert check.answer == "yes, 3 times; after 10 losses the run fails (TOO_MANY_LOSSES)"
    found = await api("GetRun", wire.GetRunRequest(run_id=run.run_id))
    assert (found.losses, found.max_losses) == (3, 10)


async def test_a_member_without_a_trusted_lease_explains_that_runs_wait_for_it(api):
    run = await api("SubmitRun", submit())
    api.cluster.trust = False
    why = await api("ExplainRun", wire.ExplainRunRequest(run_id=run.run_id))
    assert why.answer.startswith("The run waits: this member's lease in etcd isn't trusted")
    assert why.checks[0].remedy == "schedctl cluster doctor"


async def test_lateness_is_that_of_the_first_start(api):
    asked = await api("SubmitRun", submit())
    due = asked.due_at.ToDatetime(UTC)
    me = api.world.members[0]

    async def attempt(start: timedelta, state: State) -> run_pb2.Run:
        """Return the run after an attempt that starts so long after the run was due."""
        [live] = await me.store.owner.live_runs([*me.epochs], list(LIVE))
        [assigned] = await me.assigned(draft(live))
        began = due + start
        wait = began + timedelta(seconds=1) if state is State.RETRYING else None
        done = report(
            assigned,
            state=state,
            reason=Reason.EXIT_CODE,
            started_at=began,
            finished_at=began,
            retry_at=wait,
        )
        assert await me.store.results.accept([done]) == [Verdict.ACCEPTED]
        return await api("GetRun", wire.GetRunRequest(run_id=asked.run_id))

    assert not asked.HasField("lateness_ms")
    first = await attempt(timedelta(milliseconds=17), State.RETRYING)
    assert (first.lateness_ms, first.state) == (17, common_pb2.RUN_STATE_RETRYING)
    second = await attempt(timedelta(seconds=7), State.RETRYING)
    assert (second.lateness_ms, second.started_at.ToDatetime(UTC)) == (
        17,
        due + timedelta(seconds=7),
    )
    third = await attempt(timedelta(seconds=20), State.FAILED)
    assert third.lateness_ms == 17
    listed = await api("ListRuns", wire.ListRunsRequest())
    assert [run.lateness_ms for run in listed.runs] == [17]


async def test_a_start_before_its_time_by_the_workers_clock_is_not_late_at_all(api):
    asked = await api("SubmitRun", submit())
    me = api.world.members[0]
    [live] = await me.store.owner.live_runs([*me.epochs], list(LIVE))
    [assigned] = await me.assigned(draft(live))
    began = asked.due_at.ToDatetime(UTC) - timedelta(milliseconds=3)
    await me.store.results.accept([report(assigned, started_at=began)])
    run = await api("GetRun", wire.GetRunRequest(run_id=asked.run_id))
    assert (run.HasField("lateness_ms"), run.lateness_ms) == (True, 0)


async def test_pages_of_dead_letters_leave_none_out_and_have_none_twice(api):
    """Letters are in the order of the runs' due times, not of their ends."""
    ids = [(await api("SubmitRun", submit())).run_id for _ in range(5)]
    await api.world.sql(
        "INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)"
        " SELECT run_id, scheduled_at, job_id, 'f' FROM runs RETURNING 1"
    )
    await api.world.sql("UPDATE runs SET state = 'FAILED' RETURNING 1")
    found, token = [], ""
    while len(found) < 10:
        page = await api(
            "ListDeadLetters", wire.ListDeadLettersRequest(page_size=2, page_token=token)
        )
        found += [letter.run.run_id for letter in page.dead_letters]
        token = page.next_page_token
        if not token:
            break
    assert found == ids[::-1]
