"""A call compiles each schedule once, and reads each definition once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from schedd.api.batches import SLICE, RequestTemplates
from schedd.api.jobs.create import batch_create_jobs, create_job
from schedd.api.jobs.jobs import update_job
from schedd.api.services import Caller, Services
from schedd.core.events import discard
from schedd.core.ids import JobId, Timeline
from schedd.core.runs.model import NewRun
from schedd.core.runs.records import Create, DatabaseProbe, JobRecord, StoredDefinition, TimerEdit
from schedd.core.schedule import compiled_schedule
from schedd.runtime import job_codec
from schedproto.v1 import job_pb2, job_service_pb2
from support.callers import TESTER
from support.runs import NOW

CALLER = Caller(TESTER, "test")
MINUTE = timedelta(minutes=1)


class Rows:
    """The dependencies of calls on jobs, with one table of jobs."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobRecord] = {}
        self.store = self.clock = self.lines = self.cluster = self.worker_store = self
        self.membership = self.wake_ups = self
        self.emit = discard

    @property
    def services(self) -> Services:
        return cast("Services", self)

    def now(self) -> datetime:
        return NOW

    def view(self) -> SimpleNamespace:
        return SimpleNamespace(workers=frozenset(), timeline=Timeline(1))

    def workers(self) -> list[object]:
        return []

    def jobs_changed(self, _: object) -> None: ...

    async def incarnations(self, _: list[str]) -> list[object]:
        return []

    async def probe(self) -> DatabaseProbe:
        return DatabaseProbe(NOW, Timeline(1), in_recovery=False)

    async def unstarted_attempts(self, *_: object) -> list[object]:
        return []

    async def get_job(self, _namespace: str, job: str) -> JobRecord | None:
        return self.jobs.get(job)

    async def create_job(self, record: JobRecord, _key: object, _entry: object) -> JobRecord:
        name = record.definition.name
        self.jobs[name] = replace(record, definition=_read_back(record.definition))
        return self.jobs[name]

    async def create_jobs(self, wanted: Sequence[Create]) -> list[Create]:
        for one in wanted:
            await self.create_job(one.record, one.key, one.entry)
        return [*wanted]

    async def update_job(
        self,
        _job_id: JobId,
        _seen: int,
        edited: StoredDefinition,
        timer: TimerEdit,
        _entry: object,
        missed: Callable[[JobRecord], NewRun | None] | None,
        _redirection: object,
    ) -> JobRecord:
        record = self.jobs[edited.name]
        if missed is not None:
            missed(record)
        due, nominal = timer.reset or (record.due_at, record.nominal)
        stored = replace(record, definition=_read_back(edited), due_at=due, nominal=nominal)
        self.jobs[edited.name] = stored
        return stored


def _read_back(stored: StoredDefinition) -> StoredDefinition:
    return replace(stored, spec=bytes(stored.spec), after=(), line=None)


class Counts:
    """How often the functions that make something of a definition were called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compiled: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        compile_ = compiled_schedule.compile

        def compiling(schedule: Any, seed: str, *more: Any) -> Any:
            self.compiled[f"{seed} {' '.join(schedule.expressions)}"] += 1
            return compile_(schedule, seed, *more)

        monkeypatch.setattr(compiled_schedule, "compile", compiling)
        for name in ("stored_spec", "spec_of", "line_id"):
            monkeypatch.setattr(job_codec, name, self._counting(name))

    def _counting(self, name: str) -> Callable[..., Any]:
        function = getattr(job_codec, name)

        def counted(*given: Any, **named: Any) -> Any:
            self.made[name] += 1
            return function(*given, **named)

        return counted

    def clear(self) -> None:
        self.compiled.clear()
        self.made.clear()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    return Counts(monkeypatch)


def job(name: str, cron: str = "0 3 * * *", **more: Any) -> job_pb2.Job:
    shell = job_pb2.ShellAction(argv=["true"])
    exclude = job_pb2.Exclude(cron=["* * 1 1 *"])
    return job_pb2.Job(name=name, cron=[cron], exclude=exclude, shell=shell, **more)


def created(name: str, **more: Any) -> job_service_pb2.CreateJobRequest:
    return job_service_pb2.CreateJobRequest(job=job(name, **more))


@pytest.mark.parametrize("validate_only", [False, True])
async def test_a_create_compiles_its_schedule_once(counts: Counts, validate_only: bool) -> None:
    request = created("a")
    request.validate_only = validate_only
    answer = await create_job(Rows().services, CALLER, request)
    assert answer.HasField("next_run_at")
    assert counts.compiled == {"default/a 0 3 * * *": 1}
    assert counts.made == {"spec_of": 1, "line_id": 1}


NAMES = [f"job-{number}" for number in range(40)]


async def created_together(rows: Rows, **more: Any) -> None:
    wanted = [created(name, **more) for name in NAMES]
    request = job_service_pb2.BatchCreateJobsRequest(requests=wanted)
    answer = await batch_create_jobs(rows.services, CALLER, request)
    assert [one.job.name for one in answer.results] == NAMES


async def test_a_batch_compiles_a_schedule_once_for_all_jobs_that_have_it(counts: Counts) -> None:
    await created_together(Rows())
    assert counts.compiled == {"default/job-0 0 3 * * *": 1}
    assert counts.made == {"spec_of": 1, "line_id": 1}


async def test_a_batch_compiles_a_schedule_for_each_job_whose_name_it_hashes(
    counts: Counts,
) -> None:
    await created_together(Rows(), cron="H 3 * * *")
    assert counts.compiled == {f"default/{name} H 3 * * *": 1 for name in NAMES}


async def test_other_tasks_run_between_the_slices_of_equal_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    derived = 0
    find = RequestTemplates.find

    def counting(templates: Any, request: Any) -> Any:
        nonlocal derived
        derived += 1
        return find(templates, request)

    async def look() -> None:
        while True:
            looks.append(derived)
            await asyncio.sleep(0)

    looks: list[int] = []
    monkeypatch.setattr(RequestTemplates, "find", counting)
    looking = asyncio.create_task(look())
    await created_together(Rows())
    looking.cancel()
    assert derived == len(NAMES)
    assert max(after - before for before, after in pairwise(looks)) <= SLICE


class LateRows(Rows):
    """The clock passes the first scheduled time after some looks at it."""

    looks = 0

    def now(self) -> datetime:
        self.looks += 1
        return NOW if self.looks < 20 else NOW + timedelta(days=1)


async def test_no_job_of_a_batch_is_due_at_a_time_that_passed_during_the_call() -> None:
    rows = LateRows()
    await created_together(rows)
    due = {one.due_at for one in rows.jobs.values() if one.due_at is not None}
    assert len(due) == 2
    for record in rows.jobs.values():
        assert record.due_at is not None
        assert record.due_at > record.created_at


@pytest.mark.parametrize(
    ("mask", "fields", "compiled"),
    [
        ("cron", {"cron": "30 4 * * *"}, {"0 3 * * *": 1, "30 4 * * *": 1}),
        ("timeout", {"timeout": Duration(seconds=7)}, {"0 3 * * *": 2}),
        ("max_runs", {"max_runs": 5}, {"0 3 * * *": 2}),
    ],
)
async def test_an_update_compiles_the_old_and_the_new_schedule_once(
    counts: Counts, mask: str, fields: dict[str, Any], compiled: dict[str, int]
) -> None:
    rows = Rows()
    await create_job(rows.services, CALLER, created("a", jitter=Duration(seconds=50)))
    late = rows.jobs["a"]
    rows.jobs["a"] = replace(late, nominal=NOW - MINUTE, due_at=NOW - MINUTE)
    counts.clear()
    answer = await update(rows, mask, **fields)
    assert answer.generation == 2
    assert counts.compiled == {f"default/a {cron}": times for cron, times in compiled.items()}
    assert counts.made == {"stored_spec": 1, "spec_of": 1, "line_id": 1}


async def test_an_update_stores_the_retention_that_it_sets() -> None:
    rows = Rows()
    await create_job(rows.services, CALLER, created("a"))
    await update(rows, "retention", retention=Duration(seconds=60))
    assert rows.jobs["a"].definition.retention == MINUTE


async def update(rows: Rows, mask: str, **fields: Any) -> job_pb2.Job:
    request = job_service_pb2.UpdateJobRequest(
        job=job("a", **fields), update_mask=FieldMask(paths=[mask])
    )
    return await update_job(rows.services, CALLER, request)
