"""Many jobs or submits in one call, on a real database: each has the result of a single call."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from schedd.api.definitions.validation import MAX_PAYLOAD
from schedd.api.errors import CallError, InvalidArgumentError
from schedd.core.ids import Id, JobId
from schedkit.errors import OutcomeUnknown, Unavailable
from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import pool_service_pb2 as pools
from schedproto.v1 import run_service_pb2 as runs

SHELL = job_pb2.ShellAction(argv=["true"])


def create(name: str, key: str = "", **changes: Any) -> jobs.CreateJobRequest:
    values = {"name": name, "every": Duration(seconds=3600), "shell": SHELL, **changes}
    given = {name: value for name, value in values.items() if value is not None}
    return jobs.CreateJobRequest(
        job=job_pb2.Job(**given), idempotency_key=key, request_id=f"call-{name}"
    )


def submit(name: str, key: str = "", **spec: Any) -> runs.SubmitRunRequest:
    values = {"shell": SHELL, **spec}
    return runs.SubmitRunRequest(name=name, spec=job_pb2.Job(**values), idempotency_key=key)


WRONG = [
    create("No Such Name"),
    create("none", shell=None),
    create("odd", cron=["* * * * * * * *"], every=None),
    create("alone", after=job_pb2.After(jobs=["nobody"]), every=None),
    create("floating", pool="nowhere"),
    create("long", "k" * 300),
    create("far", every=Duration(seconds=1 << 60)),
    create("taken"),
]
WRONG_SUBMITS = [
    submit("No Such Name"),
    submit("timed", every=Duration(seconds=60)),
    submit("floating", pool="nowhere"),
    runs.SubmitRunRequest(spec=job_pb2.Job(shell=SHELL), delay=Duration(seconds=-1)),
    runs.SubmitRunRequest(namespace="No Such", spec=job_pb2.Job(shell=SHELL)),
    submit("odd", payload=common_pb2.Payload(json="{")),
    submit("large", payload=common_pb2.Payload(raw=b"x" * (MAX_PAYLOAD + 1))),
]


async def batch(api: Any, *requests: jobs.CreateJobRequest) -> list[Any]:
    answer = await api("BatchCreateJobs", jobs.BatchCreateJobsRequest(requests=requests))
    return list(answer.results)


async def batch_of_submits(api: Any, *requests: runs.SubmitRunRequest) -> list[Any]:
    answer = await api("BatchSubmitRuns", runs.BatchSubmitRunsRequest(requests=requests))
    return list(answer.results)


async def test_a_thousand_jobs_are_made_in_their_order_each_with_its_line_in_the_audit(api):
    wanted = [create(f"job-{n}", f"key-{n}") for n in range(1_000)]
    results = await batch(api, *wanted)
    assert [one.job.name for one in results] == [f"job-{n}" for n in range(1_000)]
    stored = await api("GetJob", jobs.GetJobRequest(job="job-700"))
    assert results[700].job.warnings, "no worker runs"
    results[700].job.ClearField("warnings")
    assert stored == results[700].job
    lines = await api.world.sql("SELECT object, source FROM audit WHERE action = 'create'")
    assert sorted(lines) == sorted(
        (f"job/default/job-{n}", f"test request:call-job-{n}") for n in range(1_000)
    )


async def test_each_job_of_a_batch_of_several_kinds_is_stored_as_its_own_request(api):
    kinds = [
        {"timeout": Duration(seconds=n + 1), "retention": Duration(seconds=86_400 * (n + 1))}
        for n in range(3)
    ]
    wanted = [create(f"job-{n}", f"key-{n}", **kinds[n % 3]) for n in range(30)]
    results = await batch(api, *wanted)
    for given, result in zip(wanted, results, strict=True):
        stored = await api("GetJob", jobs.GetJobRequest(job=given.job.name))
        assert (stored.timeout, stored.retention) == (given.job.timeout, given.job.retention)
        result.job.ClearField("warnings")
        assert stored == result.job


async def test_the_owners_of_timers_that_are_due_soon_are_woken(api):
    soon, later = Duration(seconds=20), Duration(seconds=86_400 * 3_650)
    wanted = [create(f"job-{n}", every=later if n % 2 else soon) for n in range(10)]
    results = await batch(api, *wanted)
    await api("CreateJob", create("later", every=later))
    alone = await api("CreateJob", create("soon", every=soon))
    woken = [one.job.job_id for one in results[::2]] + [alone.job_id]
    assert sorted(api.nudged.jobs) == sorted(JobId(Id.parse(job_id)) for job_id in woken)


async def test_each_job_of_a_batch_has_the_hashed_times_of_its_own_name(api):
    names = [f"job-{n}" for n in range(20)]
    hashed = {"cron": ["H H * * *"], "every": None}
    results = await batch(api, *(create(name, **hashed) for name in names))
    times = {one.job.name: one.job.next_run_at.ToNanoseconds() for one in results}
    assert len({*times.values()}) > 10
    for name in names[:3]:
        await api("DeleteJob", jobs.DeleteJobRequest(job=name))
        alone = await api("CreateJob", create(name, **hashed))
        assert alone.next_run_at.ToNanoseconds() == times[name]


async def test_each_job_of_a_batch_has_a_jitter_of_its_own(api):
    names = [f"job-{n}" for n in range(20)]
    await batch(api, *(create(name, jitter=Duration(seconds=600)) for name in names))
    for name in names:
        stored = await api("GetJob", jobs.GetJobRequest(job=name))
        listed = await api("ListNextInstants", jobs.ListNextInstantsRequest(job=name, count=1))
        assert stored.next_run_at == listed.instants[0].due_at


async def test_a_thousand_submits_are_runs_in_their_order_each_with_its_line_in_the_audit(api):
    results = await batch_of_submits(api, *(submit(f"work-{n}") for n in range(1_000)))
    assert [one.run.job for one in results] == [f"work-{n}" for n in range(1_000)]
    stored = await api("GetRun", runs.GetRunRequest(run_id=results[3].run.run_id))
    assert stored == results[3].run
    assert len(api.nudged.shards) == 1_000, "the owner of each receives a wake-up"
    lines = await api.world.sql("SELECT object FROM audit WHERE action = 'submit'")
    assert sorted(lines) == sorted((f"run/{one.run.run_id}",) for one in results)


async def test_submits_that_differ_in_payload_share_one_text_and_keep_each_payload(api):
    given = [
        common_pb2.Payload(json="1"),
        common_pb2.Payload(raw=b"x" * MAX_PAYLOAD),
        common_pb2.Payload(),
        None,
        common_pb2.Payload(json='{"a": [1]}'),
    ]
    wanted = [submit("work", **({} if one is None else {"payload": one})) for one in given]
    results = await batch_of_submits(api, *wanted)
    alone = await api("SubmitRun", wanted[-1])
    assert len(await api.world.sql("SELECT DISTINCT spec FROM jobs")) == 1
    stored = dict(await api.world.sql("SELECT run_id::text, payload FROM runs"))
    for one, run in zip([*given, given[-1]], [*(each.run for each in results), alone], strict=True):
        payload = stored[run.run_id]
        assert (None if payload is None else common_pb2.Payload.FromString(payload)) == one


async def test_a_batch_is_written_in_few_transactions(api, monkeypatch):
    database, calls = type(api.world.store.database), []

    def counted(plain):
        async def counting(self, body, *arguments):
            calls.append(body)
            return await plain(self, body, *arguments)

        return counting

    for name in ("call", "read"):
        monkeypatch.setattr(database, name, counted(getattr(database, name)))
    await batch(api, *(create(f"job-{n}", f"key-{n}") for n in range(1_000)))
    await batch_of_submits(api, *(submit("w", f"key-{n}") for n in range(1_000)))
    assert len(calls) == 5, "one reads the workers, for warnings"


@pytest.mark.parametrize("wrong", WRONG, ids=lambda one: one.job.name)
async def test_a_refused_job_is_reported_as_in_a_single_call_and_harms_no_other(api, wrong):
    await api("CreateJob", create("taken"))
    with pytest.raises(CallError) as alone:
        await api("CreateJob", wrong)
    before, error, after = await batch(api, create("before"), wrong, create("after"))
    assert (before.job.name, after.job.name) == ("before", "after")
    same_as(error.error, alone.value)
    assert len(await api.world.sql("SELECT name FROM jobs")) == 3


@pytest.mark.parametrize("wrong", WRONG_SUBMITS, ids=range(len(WRONG_SUBMITS)))
async def test_a_refused_submit_is_reported_as_in_a_single_call_and_harms_no_other(api, wrong):
    with pytest.raises(CallError) as alone:
        await api("SubmitRun", wrong)
    before, error, after = await batch_of_submits(api, submit("before"), wrong, submit("after"))
    assert (before.run.job, after.run.job) == ("before", "after")
    same_as(error.error, alone.value)
    assert await api.world.sql("SELECT count(*) FROM runs") == [(2,)]


async def test_a_key_means_one_job_within_a_batch_and_over_them(api):
    first, again = await batch(api, create("a", "k"), create("a", "k"))
    assert first.job.job_id == again.job.job_id
    [later, other] = await batch(api, create("a", "k"), create("b", "k"))
    assert later.job == first.job
    assert other.error.reason == "IDEMPOTENCY_KEY_REUSED"
    assert (await api("CreateJob", create("a", "k"))).job_id == first.job.job_id


async def test_a_key_means_one_run_within_a_batch_and_over_them(api):
    first, again = await batch_of_submits(api, submit("a", "k"), submit("a", "k"))
    assert first.run.run_id == again.run.run_id
    [later, other] = await batch_of_submits(api, submit("a", "k"), submit("b", "k"))
    assert later.run.run_id == first.run.run_id
    assert other.error.reason == "IDEMPOTENCY_KEY_REUSED"
    assert (await api("SubmitRun", submit("a", "k"))).run_id == first.run.run_id


async def test_a_repeated_name_in_a_batch_goes_to_its_first_job(api):
    first, second = await batch(api, create("a"), create("a"))
    assert first.job.name == "a"
    assert second.error.reason == "NAME_TAKEN"


async def test_jobs_in_pools_paused_ones_and_those_to_be_checked_go_with_the_others(api):
    await api("SetPool", pools.SetPoolRequest(pool=pools.Pool(name="p", limit=3)))
    checked = create("checked")
    checked.validate_only = True
    pooled = [create(f"pooled-{n}", pool="p") for n in range(20)]
    results = await batch(api, *pooled, create("paused", paused=True), checked, create("plain"))
    assert [one.job.pool for one in results[:20]] == ["p"] * 20
    assert results[20].job.paused
    assert results[21].job.name == "checked"
    names = {name for (name,) in await api.world.sql("SELECT name FROM jobs")}
    assert len(names) == 22
    assert "checked" not in names


@pytest.mark.parametrize("count", [0, 1_001])
async def test_a_batch_of_none_or_too_many_is_refused_as_a_whole(api, count):
    with pytest.raises(InvalidArgumentError, match="give 1 to 1,000"):
        await batch(api, *([create("a")] * count))
    with pytest.raises(InvalidArgumentError, match="give 1 to 1,000"):
        await batch_of_submits(api, *([submit("a")] * count))
    assert await api.world.sql("SELECT count(*) FROM jobs") == [(0,)]


async def test_an_unavailable_database_fails_a_batch_as_it_fails_a_single_call(api, monkeypatch):
    async def away(self, wanted):
        return [Unavailable("gone")] * len(wanted)

    monkeypatch.setattr(type(api.services.store), "create_jobs", away)
    with pytest.raises(Unavailable):
        await batch(api, create("a"), create("b"))


async def test_a_database_that_fails_midway_is_reported_for_the_entries_concerned(api, monkeypatch):
    plain = type(api.services.store).create_jobs

    async def away(self, wanted):
        first, *_ = await plain(self, wanted[:1])
        return [first, OutcomeUnknown("no answer"), Unavailable("gone")]

    monkeypatch.setattr(type(api.services.store), "create_jobs", away)
    stored, unknown, gone = await batch(api, create("a"), create("b"), create("c"))
    assert stored.job.name == "a"
    assert (unknown.error.code, unknown.error.reason) == ("DEADLINE_EXCEEDED", "OUTCOME_UNKNOWN")
    assert (gone.error.code, gone.error.reason) == ("UNAVAILABLE", "UNAVAILABLE")


async def test_a_batch_waits_once_for_an_unavailable_database(api, monkeypatch):
    asked = []

    async def away(self, *wanted):
        asked.append(wanted)
        raise Unavailable("gone")

    monkeypatch.setattr(type(api.services.pools), "there", away)
    with pytest.raises(Unavailable):
        await batch(api, *(create(f"job-{n}", pool="p") for n in range(1_000)))
    assert len(asked) < 50


async def test_an_answer_too_large_for_a_message_has_only_the_names_of_the_jobs(api):
    rest = "x" * 4_100
    wanted = [create(f"job-{n}", shell=job_pb2.ShellAction(argv=[rest])) for n in range(1_000)]
    request = jobs.BatchCreateJobsRequest(requests=wanted)
    assert request.ByteSize() < 4 * 1024 * 1024
    answer = await api("BatchCreateJobs", request)
    assert answer.ByteSize() < 4 * 1024 * 1024
    [first, *_] = answer.results
    stored = await api("GetJob", jobs.GetJobRequest(job="job-0"))
    assert stored.shell.argv == [rest]
    assert first.job == job_pb2.Job(
        job_id=stored.job_id,
        namespace="default",
        name="job-0",
        generation=1,
        etag=stored.etag,
        warnings=first.job.warnings,
    )


def same_as(error: Any, alone: CallError) -> None:
    assert (error.code, error.reason, error.message) == (alone.code, alone.reason, alone.message)
    assert error.remedy == alone.remedy
    violations = [(one.field, one.problem) for one in error.violations]
    assert violations == [(one.field, one.problem) for one in alone.violations]
