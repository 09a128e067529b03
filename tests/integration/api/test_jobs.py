"""Calls on jobs, on a real database."""

from __future__ import annotations

import asyncio
import json
import math
from datetime import timedelta
from itertools import pairwise
from typing import Any
from unittest.mock import ANY

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api.errors import (
    AbortedError,
    AlreadyExistsError,
    CallError,
    InvalidArgumentError,
    NotFoundError,
    OutcomeUnknownError,
)
from schedd.core.events import EndedUnreported, RunsMissed
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.lifecycle import LIVE, Reason, State
from schedd.core.runs.model import Loss
from schedkit.net.channel import MAX_MESSAGE
from schedproto.v1 import common_pb2, job_pb2, run_pb2
from schedproto.v1 import job_service_pb2 as wire
from schedproto.v1.cluster_service_pb2 import ListAuditRequest
from schedproto.v1.pool_service_pb2 import Pool, SetPoolRequest
from schedproto.v1.run_service_pb2 import (
    ExplainRunRequest,
    ListDeadLettersRequest,
    ListRunsRequest,
    SubmitRunRequest,
)
from support.store import draft

SHELL = job_pb2.ShellAction(argv=["true"])


FILTERS = {
    "": "d c b a_etl etl",
    "name:etl": "etl",
    "name:*etl": "a_etl etl",
    "name:a_*": "a_etl",
    "name:?": "",
    "TL": "a_etl etl",
    "paused:true": "b",
    "paused:false etl": "a_etl etl",
    "pool:reports": "c",
    "pool:none name:c": "",
    "label.team:data": "b a_etl",
    "label.team:*": "c b a_etl",
    "label.team:%": "",
    "action:http": "d",
    "action:shell label.team:data paused:false": "a_etl",
}
"""Filters, and the jobs that each selects."""


def job(name: str = "j", **changes: Any) -> job_pb2.Job:
    values: dict[str, Any] = {"name": name, "shell": SHELL}
    if not {"cron", "at", "on_demand"} & changes.keys():
        values["every"] = Duration(seconds=60)
    return job_pb2.Job(**{**values, **changes})


def create(made: job_pb2.Job, key: str = "") -> wire.CreateJobRequest:
    return wire.CreateJobRequest(job=made, idempotency_key=key)


def update(changed: job_pb2.Job, *paths: str, etag: str = "") -> wire.UpdateJobRequest:
    return wire.UpdateJobRequest(job=changed, update_mask=FieldMask(paths=paths), etag=etag)


async def test_a_created_job_is_found_and_its_owner_notified(api):
    made = await api("CreateJob", create(job()))
    assert (made.generation, made.paused) == (1, False)
    assert made.next_run_at.seconds % 60 == 0
    for name in ("j", made.job_id):
        assert (await api("GetJob", wire.GetJobRequest(job=name))).job_id == made.job_id
    assert [str(each) for each in api.nudged.jobs] == [made.job_id]


async def test_a_page_token_is_only_valid_for_its_list(api):
    for name in ("a", "b"):
        await api("CreateJob", create(job(name)))
    token = (await api("ListJobs", wire.ListJobsRequest(page_size=1))).next_page_token
    for call, request in (
        ("ListRuns", ListRunsRequest(page_token=token)),
        ("ListDeadLetters", ListDeadLettersRequest(page_token=token)),
        ("ListAudit", ListAuditRequest(page_token=token)),
        ("ListJobs", wire.ListJobsRequest(page_token=token + "x")),
    ):
        with pytest.raises(InvalidArgumentError) as refused:
            await api(call, request)
        assert refused.value.reason == "BAD_PAGE_TOKEN"


async def test_the_audit_has_a_job_before_and_after_an_edit(api):
    made = await api("CreateJob", create(job(timeout=Duration(seconds=9))))
    await api("UpdateJob", update(job(timeout=Duration(seconds=5)), "timeout"))
    await api("DeleteJob", wire.DeleteJobRequest(job=made.job_id))
    request = ListAuditRequest(object="job/default/j")
    gone, edited, created = (await api("ListAudit", request)).entries
    assert json.loads(created.after) == {"every": "60s", "timeout": "9s", "shell": ANY}
    assert created.before == gone.after == ""
    assert (edited.before, edited.after) == ('{"timeout":"9s"}', '{"timeout":"5s"}')
    assert json.loads(gone.before) == json.loads(created.after) | {"timeout": "5s"}


async def test_the_audit_has_why_a_job_was_deleted(api):
    await api("CreateJob", create(job()))
    with pytest.raises(InvalidArgumentError, match="note"):
        await api("DeleteJob", wire.DeleteJobRequest(job="j", note="two\nlines"))
    await api("DeleteJob", wire.DeleteJobRequest(job="j", note="no longer read"))
    request = ListAuditRequest(object="job/default/j", action="delete")
    [gone] = (await api("ListAudit", request)).entries
    assert json.loads(gone.after) == {"note": "no longer read"}
    assert json.loads(gone.before)["every"] == "60s"


async def test_jobs_of_a_batch_are_in_the_audit_as_those_made_alone(api):
    batch = wire.BatchCreateJobsRequest(requests=[create(job("a")), create(job("b"))])
    await api("BatchCreateJobs", batch)
    await api("CreateJob", create(job("c")))
    entries = (await api("ListAudit", ListAuditRequest(action="create"))).entries
    assert len({one.after for one in entries}) == 1
    assert len(entries) == 3
    assert json.loads(entries[0].after)["every"] == "60s"


async def test_the_audit_of_a_trigger_and_a_submit_names_the_run(api):
    await api("CreateJob", create(job()))
    triggered = await api("TriggerJob", wire.TriggerJobRequest(job="j"))
    submitted = await api("SubmitRun", SubmitRunRequest(spec=job_pb2.Job(shell=SHELL)))
    for action, run in (("trigger", triggered), ("submit", submitted)):
        [entry] = (await api("ListAudit", ListAuditRequest(run_id=run.run_id))).entries
        assert (entry.action, entry.run_id) == (action, run.run_id)


async def test_an_audit_page_with_large_lines_has_fewer_of_them(api):
    shell = job_pb2.ShellAction(argv=["x" * 8_000])
    for first in (0, 200):
        names = [f"j{at}" for at in range(first, first + 200)]
        requests = [create(job(name, shell=shell)) for name in names]
        await api("BatchCreateJobs", wire.BatchCreateJobsRequest(requests=requests))
    page = await api("ListAudit", ListAuditRequest(page_size=1000))
    assert page.ByteSize() < MAX_MESSAGE // 2 + 20_000
    more = ListAuditRequest(page_size=1000, page_token=page.next_page_token)
    rest = await api("ListAudit", more)
    assert (len(page.entries) + len(rest.entries), rest.next_page_token) == (400, "")


async def test_an_old_etag_inside_the_job_guards_it_too(api):
    read = await api("CreateJob", create(job()))
    await api("UpdateJob", update(job(timeout=Duration(seconds=9)), "timeout"))
    read.timeout.seconds = 5
    with pytest.raises(AbortedError):
        await api("UpdateJob", update(read, "timeout"))


async def test_each_of_two_etags_must_be_the_jobs(api):
    read = await api("CreateJob", create(job()))
    now = await api("UpdateJob", update(job(timeout=Duration(seconds=9)), "timeout"))
    read.timeout.seconds = 5
    with pytest.raises(AbortedError):
        await api("UpdateJob", update(read, "timeout", etag=now.etag))
    read.etag = "nonsense"
    with pytest.raises(AbortedError):
        await api("UpdateJob", update(read, "*", etag=now.etag))


async def test_an_edit_with_the_name_of_one_job_and_the_id_of_another_is_refused(api):
    mine = await api("CreateJob", create(job("mine")))
    other = await api("CreateJob", create(job("other")))
    changed = job("mine", job_id=other.job_id, slots=3)
    for paths in (("slots",), ("*",)):
        with pytest.raises(InvalidArgumentError) as refused:
            await api("UpdateJob", update(changed, *paths))
        assert refused.value.reason == "JOB_ID_MISMATCH"
    for name in ("mine", "other"):
        assert (await api("GetJob", wire.GetJobRequest(job=name))).generation == 1
    changed.job_id = mine.job_id.upper()
    assert (await api("UpdateJob", update(changed, "slots"))).slots == 3
    by_id = job("", job_id=mine.job_id, slots=4)
    assert (await api("UpdateJob", update(by_id, "slots"))).name == "mine"


async def test_a_dry_run_with_a_taken_name_reports_the_conflict(api):
    await api("CreateJob", create(job()))
    with pytest.raises(AlreadyExistsError):
        await api("CreateJob", wire.CreateJobRequest(job=job(), validate_only=True))


async def test_a_schedule_that_has_ended_is_refused_and_one_that_ends_later_may_be_edited(api):
    def ending(minutes: int) -> Timestamp:
        stamp = Timestamp()
        stamp.FromDatetime(api.clock.now() + timedelta(minutes=minutes))
        return stamp

    with pytest.raises(InvalidArgumentError) as refused:
        await api("CreateJob", create(job(end=ending(-1))))
    assert [one.field for one in refused.value.violations] == ["end"]
    await api("CreateJob", create(job(end=ending(5))))
    api.clock.ahead = timedelta(minutes=10)
    edited = await api("UpdateJob", update(job(timeout=Duration(seconds=9)), "timeout"))
    assert edited.timeout.seconds == 9
    with pytest.raises(InvalidArgumentError):
        await api("UpdateJob", update(job(every=Duration(seconds=9)), "every"))


async def test_a_name_is_taken_once(api):
    await api("CreateJob", create(job()))
    with pytest.raises(AlreadyExistsError) as refused:
        await api("CreateJob", create(job()))
    assert refused.value.reason == "NAME_TAKEN"


async def test_the_same_key_and_body_give_the_same_job_another_body_is_refused(api):
    first = await api("CreateJob", create(job(), "k"))
    again = await api("CreateJob", create(job(), "k"))
    assert again.job_id == first.job_id
    with pytest.raises(AlreadyExistsError) as refused:
        await api("CreateJob", create(job("other"), "k"))
    assert refused.value.reason == "IDEMPOTENCY_KEY_REUSED"
    assert "idempotency key 'k' was already used" in str(refused.value)
    with pytest.raises(NotFoundError):
        await api("GetJob", wire.GetJobRequest(job="other"))


async def test_checking_only_stores_nothing(api):
    await api("CreateJob", wire.CreateJobRequest(job=job(), validate_only=True))
    with pytest.raises(NotFoundError):
        await api("GetJob", wire.GetJobRequest(job="j"))


@pytest.mark.parametrize(
    "wrong",
    [
        job(name=""),
        job(name="Ü"),
        job(cron=["61 * * * *"]),
        job(cron=["0 0 31 2 *"]),
        job(cron=["0 0 * * *"], time_zone="Mars/Olympus"),
        job(every=Duration(seconds=0)),
        job(timeout=Duration(seconds=1 << 60)),
        job(slots=-1),
        job(overlap=77),
        job(payload=common_pb2.Payload(raw=b"x" * 300_000)),
        job_pb2.Job(name="j", every=Duration(seconds=60)),
    ],
)
async def test_a_wrong_job_is_refused_with_its_fields_and_nothing_is_stored(api, wrong):
    with pytest.raises(InvalidArgumentError) as refused:
        await api("CreateJob", create(wrong))
    assert refused.value.violations
    assert await api.world.sql("SELECT 1 FROM jobs") == []


async def test_lists_continue_where_they_ended(api):
    for number in range(5):
        await api("CreateJob", create(job(f"j{number}")))
    found: list[str] = []
    token = ""
    for _ in range(3):
        page = await api("ListJobs", wire.ListJobsRequest(page_size=2, page_token=token))
        found += [each.name for each in page.jobs]
        token = page.next_page_token
    assert (found, token) == (["j4", "j3", "j2", "j1", "j0"], "")


async def test_a_list_has_the_jobs_that_its_filter_means(api):
    await api("SetPool", SetPoolRequest(pool=Pool(name="reports", limit=1)))
    data = {"team": "data"}
    for made in (
        job("etl"),
        job("a_etl", labels=data),
        job("b", labels=data, paused=True),
        job("c", labels={"team": "web"}, pool="reports"),
        job("d", http=job_pb2.HttpAction(url="https://example.com/hook")),
    ):
        await api("CreateJob", create(made))
    for text, found in FILTERS.items():
        request, names = wire.ListJobsRequest(page_size=1, filter=text), []
        for _ in range(10):
            page = await api("ListJobs", request)
            names += [each.name for each in page.jobs]
            request.page_token = page.next_page_token
            if not request.page_token:
                break
        assert names == found.split(), text


async def test_a_page_that_scanned_many_jobs_may_be_short_and_continues(api, monkeypatch):
    monkeypatch.setattr("schedd.store.jobs.jobs.LOOKED_AT", 1)
    monkeypatch.setattr("schedd.api.jobs.jobs.LOOKS", 2)
    monkeypatch.setattr("schedd.api.jobs.jobs.LOOKED_FOR", math.inf)
    for name in ("etl-1", "b", "c", "d", "etl-2"):
        await api("CreateJob", create(job(name)))
    request, pages = wire.ListJobsRequest(filter="name:etl-*"), []
    while not pages or request.page_token:
        page = await api("ListJobs", request)
        pages.append([each.name for each in page.jobs])
        request.page_token = page.next_page_token
    assert pages == [["etl-2"], [], ["etl-1"]]


async def test_a_page_token_of_another_filter_is_refused(api):
    for name in ("a", "b"):
        await api("CreateJob", create(job(name)))
    request = wire.ListJobsRequest(page_size=1, filter="paused:false")
    request.page_token = (await api("ListJobs", request)).next_page_token
    assert [each.name for each in (await api("ListJobs", request)).jobs] == ["a"]
    for other in ("", "paused:true"):
        request.filter = other
        with pytest.raises(InvalidArgumentError) as refused:
            await api("ListJobs", request)
        assert refused.value.reason == "BAD_PAGE_TOKEN"


@pytest.mark.parametrize("token", ["x", "Ü", "W10=", "eyJhIjogMX0=", "[" * 5000])
async def test_an_invalid_page_token_is_refused(api, token):
    with pytest.raises(InvalidArgumentError):
        await api("ListJobs", wire.ListJobsRequest(page_token=token))


async def test_an_edit_changes_only_the_fields_of_its_mask(api):
    made = await api("CreateJob", create(job(slots=2, labels={"a": "b"})))
    edited = await api("UpdateJob", update(job(slots=3, labels={"x": "y"}), "slots"))
    assert (edited.slots, dict(edited.labels), edited.generation) == (3, {"a": "b"}, 2)
    assert edited.next_run_at == made.next_run_at
    assert edited.etag != made.etag


async def test_an_edit_to_another_kind_of_schedule_removes_the_old_schedule(api):
    await api("CreateJob", create(job()))
    edited = await api("UpdateJob", update(job(cron=["0 3 * * *"]), "cron"))
    assert (list(edited.cron), edited.HasField("every")) == (["0 3 * * *"], False)


async def test_an_edit_to_on_demand_removes_start_jitter_and_interval(api):
    await api("CreateJob", create(job(start=Timestamp(seconds=1), jitter=Duration(seconds=5))))
    edited = await api("UpdateJob", update(job(on_demand=True), "on_demand"))
    assert not any(map(edited.HasField, ("every", "start", "jitter")))


async def test_an_edit_of_an_outdated_generation_fails(api):
    made = await api("CreateJob", create(job()))
    await api("UpdateJob", update(job(slots=2), "slots", etag=made.etag))
    with pytest.raises(AbortedError):
        await api("UpdateJob", update(job(slots=3), "slots", etag=made.etag))


@pytest.mark.parametrize("paths", [(), ("nothing",), ("name",), ("retry.nothing",), ("cron.x",)])
async def test_an_invalid_mask_is_rejected(api, paths):
    await api("CreateJob", create(job()))
    with pytest.raises(InvalidArgumentError):
        await api("UpdateJob", update(job(), *paths))


async def test_an_edit_records_unfired_times_of_the_old_schedule_as_missed(api):
    await api("CreateJob", create(job(every=Duration(seconds=60))))
    api.clock.ahead = timedelta(minutes=10)
    await api("UpdateJob", update(job(every=Duration(seconds=3600)), "every"))
    [(state, reason, count)] = await api.rows("j")
    assert (state, reason) == ("MISSED", "EDITED")
    assert count in (9, 10)
    assert api.events == [RunsMissed(Reason.EDITED, count)]


async def test_an_edit_without_missed_times_and_a_rejected_edit_count_nothing(api):
    await api("CreateJob", create(job(every=Duration(seconds=60))))
    await api("UpdateJob", update(job(every=Duration(seconds=3600)), "every"))
    api.clock.ahead = timedelta(hours=2)
    with pytest.raises(AbortedError):
        await api("UpdateJob", update(job(every=Duration(seconds=60)), "every", etag="another"))
    assert api.events == []


async def unfired(api, minutes: int = 10) -> None:
    """Stop firing: move the timer back by so many of its instants."""
    await api.world.sql(
        "UPDATE timers SET due_at = due_at - span, nominal = nominal - span"
        " FROM make_interval(mins => %s) span",
        minutes,
    )


async def test_a_deletion_records_unfired_times_of_the_job_as_missed(api):
    """P3.19."""
    await api("CreateJob", create(job()))
    await unfired(api)
    await api("DeleteJob", wire.DeleteJobRequest(job="j"))
    [(state, reason, count)] = await api.rows("j")
    assert (state, reason) == ("MISSED", "DELETED")
    assert count in (10, 11)
    assert api.events == [RunsMissed(Reason.DELETED, count)]
    [(all_before, generation)] = await api.world.sql(
        "SELECT r.scheduled_until <= j.deleted_at"
        " AND r.scheduled_until > j.deleted_at - interval '1 min', r.generation"
        " FROM runs r JOIN jobs j USING (job_id)"
    )
    assert (all_before, generation) == (True, 1)


async def test_waiting_runs_of_a_deleted_job_are_counted_as_ended_and_running_ones_not(api):
    await api("CreateJob", create(job(cron=["0 0 1 1 *"], overlap=job_pb2.OVERLAP_ALLOW)))
    for _ in range(3):
        await api("TriggerJob", wire.TriggerJobRequest(job="j"))
    me = api.world.members[0]
    runs, *_ = await me.store.owner.live_runs([*me.epochs], list(LIVE))
    await me.assigned(draft(runs, generation=1, overlap=Overlap.ALLOW, overlap_limit=0))

    with pytest.raises(AbortedError):
        await api("DeleteJob", wire.DeleteJobRequest(job="j", etag="another"))
    assert api.events == []
    await api("DeleteJob", wire.DeleteJobRequest(job="j"))
    assert sorted(row[:2] for row in await api.rows("j"))[:2] == [("CANCELLED", "DELETED")] * 2
    assert api.events == [EndedUnreported(State.CANCELLED, Reason.DELETED, 2)]


async def test_a_deletion_records_times_of_a_paused_job_as_skipped(api):
    await api("CreateJob", create(job()))
    await api("PauseJob", wire.PauseJobRequest(job="j"))
    await unfired(api)
    await api("DeleteJob", wire.DeleteJobRequest(job="j"))
    assert [row[:2] for row in await api.rows("j")] == [("SKIPPED", "PAUSED")]


async def test_a_job_without_due_times_is_deleted_without_a_row(api):
    for each in (job(every=Duration(seconds=86400 * 365)), job("by-hand", on_demand=True)):
        await api("CreateJob", create(each))
        await api("DeleteJob", wire.DeleteJobRequest(job=each.name))
    assert await api.world.sql("SELECT * FROM runs") == []


async def test_a_job_that_only_a_newer_version_can_read_can_be_deleted(api):
    await api("CreateJob", create(job()))
    await unfired(api)
    newer = job(cron=["0 3 * * *"], definition_version=99).SerializeToString()
    await api.world.sql("UPDATE jobs SET spec = %s", newer)
    await api("DeleteJob", wire.DeleteJobRequest(job="j"))
    with pytest.raises(NotFoundError):
        await api("GetJob", wire.GetJobRequest(job="j"))
    assert await api.rows("j") == []


@pytest.mark.parametrize("call", ["edit", "delete"])
async def test_a_run_fired_during_an_edit_isnt_recorded_twice(api, monkeypatch, call):
    """P3.19: reckoned from the timer under its lock, not from what was read before."""
    await api("CreateJob", create(job()))
    await unfired(api)
    users = type(api.services.store)
    found = users.get_job

    async def overtaken(store, namespace: str, name: str):
        record = await found(store, namespace, name)
        await unfired(api, minutes=-4)  # its owner, that fired four
        return record

    monkeypatch.setattr(users, "get_job", overtaken)
    if call == "edit":
        await api("UpdateJob", update(job(every=Duration(seconds=3600)), "every"))
    else:
        await api("DeleteJob", wire.DeleteJobRequest(job="j"))
    [(_, reason, count)] = await api.rows("j")
    assert reason == ("EDITED" if call == "edit" else "DELETED")
    assert count in (6, 7)


async def test_an_edit_that_ends_the_schedule_records_unfired_times_as_missed(api):
    """P3.19, by fewer `max_runs` than it has made; and the timer doesn't go back to it."""
    await api("CreateJob", create(job(max_runs=5)))
    await unfired(api)
    await api.world.sql("UPDATE timers SET fired = 3")
    await api("UpdateJob", update(job(max_runs=2), "max_runs"))
    assert [row[:2] for row in await api.rows("j")] == [("MISSED", "EDITED")]
    [(due, past)] = await api.world.sql(
        "SELECT t.due_at, t.nominal > r.scheduled_until FROM timers t JOIN runs r USING (job_id)"
    )
    assert (due, past) == (None, True)


async def test_a_pause_waits_for_runs_that_may_still_start_or_reports_unknown(api):
    """P3.8: no ok while an assignment may be on its way."""
    made = await api("CreateJob", create(job(on_demand=True)))
    run = await api("TriggerJob", wire.TriggerJobRequest(job="j"))
    me = api.world.members[0]
    [live] = await me.store.owner.live_runs([*me.epochs], list(LIVE))
    await me.assigned(draft(live, generation=made.generation))

    await api("PauseJob", wire.PauseJobRequest(job="j", note="why not"))
    assert [str(each) for each in api.lines.revoked] == [run.run_id]

    async def never(runs: object) -> None:
        await asyncio.Event().wait()

    api.lines.revoke = never
    with pytest.raises(OutcomeUnknownError):
        await api("PauseJob", wire.PauseJobRequest(job="j"), deadline=0.05)


async def test_a_delete_waits_for_runs_that_a_lost_worker_may_still_start(api):
    made = await api("CreateJob", create(job(on_demand=True)))
    run = await api("TriggerJob", wire.TriggerJobRequest(job="j"))
    me = api.world.members[0]
    [live] = await me.store.owner.live_runs([*me.epochs], list(LIVE))
    [out] = await me.assigned(draft(live, generation=made.generation))
    loss = Loss(out.key, out.shard, out.token, out.incarnation, State.RETRYING, Reason.WORKER_LOST)
    assert await me.store.owner.rescue(me.claim(out.shard), [loss]) == [out.key]

    await api("DeleteJob", wire.DeleteJobRequest(job="j"))

    assert [str(each) for each in api.lines.revoked] == [run.run_id]


async def test_a_repeated_edit_waits_only_for_attempts_of_older_generations(api):
    made = await api("CreateJob", create(job(on_demand=True)))
    await api("TriggerJob", wire.TriggerJobRequest(job="j"))
    me = api.world.members[0]
    [live] = await me.store.owner.live_runs([*me.epochs], list(LIVE))
    await me.assigned(draft(live, generation=made.generation))

    await api("UpdateJob", update(job(on_demand=True), "slots"))
    assert api.lines.revoked == [], "it is of this very generation"
    changed = job(on_demand=True, slots=2)
    await api("UpdateJob", update(changed, "slots"))
    await api("UpdateJob", update(changed, "slots"))
    assert len(api.lines.revoked) == 2


async def test_a_pause_with_an_outdated_etag_is_rejected(api):
    seen = await api("CreateJob", create(job("etl")))
    edited = await api("UpdateJob", update(job_pb2.Job(name="etl", slots=2), "slots"))
    with pytest.raises(AbortedError, match="was changed meanwhile"):
        await api("PauseJob", wire.PauseJobRequest(job="etl", etag=seen.etag))
    assert not (await api("GetJob", wire.GetJobRequest(job="etl"))).paused
    assert (await api("PauseJob", wire.PauseJobRequest(job="etl", etag=edited.etag))).paused


@pytest.mark.parametrize("call", ["DeleteJob", "PauseJob"])
async def test_an_etag_guards_against_a_concurrent_edit(api, monkeypatch, call):
    """The job is read, edited by another, and only then locked."""
    seen = await api("CreateJob", create(job("etl")))
    store = api.services.store
    name, request = {
        "DeleteJob": ("delete_job", wire.DeleteJobRequest(job="etl", etag=seen.etag)),
        "PauseJob": ("pause_job", wire.PauseJobRequest(job="etl", etag=seen.etag)),
    }[call]
    plain = getattr(type(store), name)
    edits = [update(job_pb2.Job(name="etl", slots=2), "slots")]

    async def after_an_edit(self: Any, *arguments: Any) -> Any:
        while edits:
            await api("UpdateJob", edits.pop())
        return await plain(self, *arguments)

    monkeypatch.setattr(type(store), name, after_an_edit)
    with pytest.raises(AbortedError, match="was changed meanwhile"):
        await api(call, request)
    kept = await api("GetJob", wire.GetJobRequest(job="etl"))
    assert (kept.slots, kept.paused) == (2, False)
    assert await api.world.sql("SELECT count(*) FROM audit WHERE action = 'delete'") == [(0,)]
    request.ClearField("etag")
    await api(call, request)


async def test_a_run_triggered_while_its_job_is_paused_isnt_shown_as_paused(api):
    """The run starts; a run that waits for the end of the pause says so."""
    await api("CreateJob", create(job(cron=["0 0 1 1 *"])))
    await api("TriggerJob", wire.TriggerJobRequest(job="j"))
    await api.world.sql("UPDATE runs SET trigger = 'SCHEDULE'")
    await api("PauseJob", wire.PauseJobRequest(job="j"))
    triggered = await api("TriggerJob", wire.TriggerJobRequest(job="j"))
    assert triggered.reason == common_pb2.REASON_UNSPECIFIED
    listed = await api("ListRuns", ListRunsRequest(job="j"))
    assert {one.trigger: one.reason for one in listed.runs} == {
        run_pb2.Run.TRIGGER_MANUAL: common_pb2.REASON_UNSPECIFIED,
        run_pb2.Run.TRIGGER_SCHEDULE: common_pb2.REASON_PAUSED,
    }
    for one in listed.runs:
        why = await api("ExplainRun", ExplainRunRequest(run_id=one.run_id))
        waits = one.trigger == run_pb2.Run.TRIGGER_SCHEDULE
        assert ("job j is paused" in why.answer) is waits, why


async def test_the_instants_of_a_pause_become_one_row_and_none_is_replayed(api):
    await api("CreateJob", create(job(cron=["* * * * * *", "*/7 * * * * *"])))
    await api("PauseJob", wire.PauseJobRequest(job="j", note="n"))
    api.clock.ahead = timedelta(hours=6)
    resumed = await api("ResumeJob", wire.ResumeJobRequest(job="j"))
    [(state, reason, count)] = await api.rows("j")
    assert (state, reason) == ("SKIPPED", "PAUSED")
    assert 6 * 3600 - 5 <= count <= 6 * 3600 + 5
    assert resumed.next_run_at.ToDatetime() > (api.clock.now() - timedelta(seconds=5)).replace(
        tzinfo=None
    )
    assert (resumed.paused, resumed.pause_note) == (False, "")


async def test_a_pause_that_began_before_anything_was_due_leaves_the_timer(api):
    made = await api("CreateJob", create(job(cron=["0 0 1 1 *"])))
    await api("PauseJob", wire.PauseJobRequest(job="j"))
    resumed = await api("ResumeJob", wire.ResumeJobRequest(job="j"))
    assert resumed.next_run_at == made.next_run_at
    assert await api.rows("j") == []


async def test_a_resume_concurrent_with_an_edit_uses_the_new_schedule(api, monkeypatch):
    await api("CreateJob", create(job(every=Duration(seconds=60))))
    await api("PauseJob", wire.PauseJobRequest(job="j"))
    store = api.services.store
    plain = type(store).resume_job
    edits = [update(job(cron=["0 0 1 1 *"]), "cron")]

    async def resume_after_an_edit(self: Any, *arguments: Any) -> Any:
        if edits:
            await api("UpdateJob", edits.pop())
        return await plain(self, *arguments)

    monkeypatch.setattr(type(store), "resume_job", resume_after_an_edit)
    resumed = await api("ResumeJob", wire.ResumeJobRequest(job="j"))
    moment = resumed.next_run_at.ToDatetime()
    assert (moment.month, moment.day, moment.hour, moment.minute) == (1, 1, 0, 0)


async def test_a_deleted_job_frees_its_name_and_cancels_waiting_runs(api):
    await api("CreateJob", create(job(on_demand=True)))
    await api("TriggerJob", wire.TriggerJobRequest(job="j", delay=Duration(seconds=3600)))
    await api("DeleteJob", wire.DeleteJobRequest(job="j"))
    assert await api.rows("j") == [("CANCELLED", "DELETED", 1)]
    with pytest.raises(NotFoundError):
        await api("TriggerJob", wire.TriggerJobRequest(job="j"))
    await api("CreateJob", create(job()))


async def test_a_trigger_with_a_key_starts_one_run(api):
    await api("CreateJob", create(job()))
    ask = wire.TriggerJobRequest(job="j", idempotency_key="k", priority=common_pb2.PRIORITY_HIGH)
    first = await api("TriggerJob", ask)
    again = await api("TriggerJob", ask)
    assert (again.run_id, first.trigger) == (first.run_id, run_pb2.Run.TRIGGER_MANUAL)
    with pytest.raises(AlreadyExistsError):
        await api("TriggerJob", wire.TriggerJobRequest(job="j", idempotency_key="k"))
    assert len(await api.rows("j")) == 1


async def test_a_delayed_trigger_is_due_then(api):
    await api("CreateJob", create(job(on_demand=True)))
    run = await api("TriggerJob", wire.TriggerJobRequest(job="j", delay=Duration(seconds=60)))
    assert run.due_at.seconds - run.scheduled_at.seconds == 60


@pytest.mark.parametrize(
    "wrong",
    [
        wire.TriggerJobRequest(job="j", delay=Duration(seconds=-1)),
        wire.TriggerJobRequest(job="j", delay=Duration(seconds=1 << 60)),
        wire.TriggerJobRequest(job="j", priority=99),
        wire.TriggerJobRequest(job="j", idempotency_key="k" * 3_000),
        wire.TriggerJobRequest(job="j", namespace="No Such"),
        wire.TriggerJobRequest(job="j", payload=common_pb2.Payload(raw=b"x" * 300_000)),
    ],
)
async def test_a_wrong_trigger_is_refused_and_nothing_is_stored(api, wrong):
    await api("CreateJob", create(job()))
    with pytest.raises(CallError):
        await api("TriggerJob", wrong)
    assert await api.rows("j") == []


async def test_the_next_instants_of_a_job_end_where_its_schedule_does(api):
    await api("CreateJob", create(job(every=Duration(seconds=60))))
    answer = await api("ListNextInstants", wire.ListNextInstantsRequest(job="j", count=3))
    seconds = [each.scheduled_at.seconds for each in answer.instants]
    assert [b - a for a, b in pairwise(seconds)] == [60, 60]
    with pytest.raises(InvalidArgumentError):
        await api("ListNextInstants", wire.ListNextInstantsRequest(job="j", count=1_001))
