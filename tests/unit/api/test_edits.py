"""Edits are refused for mistakes that they add, never for fields of an earlier version."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api.definitions import validation
from schedd.api.errors import InvalidArgumentError
from schedd.api.jobs.jobs import update_job
from schedd.api.services import Caller, Services
from schedd.core.events import discard
from schedd.core.jobs.definition import Definition
from schedd.core.runs.records import JobRecord
from schedd.core.schedule.cron import DIALECT
from schedd.runtime.job_codec import spec_of
from schedproto.v1 import job_pb2, job_service_pb2
from support.callers import TESTER
from support.definitions import requested
from support.runs import NOW
from support.store import job_record


def http(**headers: str) -> job_pb2.HttpAction:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return job_pb2.HttpAction(url="http://example.org", headers=names)


def shell(*codes: int, **more: Any) -> job_pb2.ShellAction:
    return job_pb2.ShellAction(argv=["true"], success_codes=codes, **more)


class Stored:
    """The store, with one job as some version stored it."""

    def __init__(self, **fields: Any) -> None:
        self.spec = job_pb2.Job(**{"on_demand": True, **fields})
        self.store = self.clock = self.lines = self.cluster = self.worker_store = self
        self.emit = discard

    def view(self) -> SimpleNamespace:
        return SimpleNamespace(workers=frozenset())

    def workers(self) -> list[object]:
        return []

    async def incarnations(self, _: list[str]) -> list[object]:
        return []

    def now(self) -> datetime:
        return NOW

    async def get_job(self, _namespace: str, _job: str) -> JobRecord:
        record = job_record(due=None)
        stored = replace(record.definition, spec=self.spec.SerializeToString(deterministic=True))
        return replace(record, definition=stored)

    async def edited(self, *mask: str, **fields: Any) -> job_pb2.Job:
        """The job as it would be after this edit."""
        request = job_service_pb2.UpdateJobRequest(
            job=job_pb2.Job(name="test", **fields),
            update_mask=FieldMask(paths=mask),
            validate_only=True,
        )
        return await update_job(cast("Services", self), Caller(TESTER, "test"), request)

    async def refused(self, *mask: str, **fields: Any) -> set[str]:
        with pytest.raises(InvalidArgumentError) as refusal:
            await self.edited(*mask, **fields)
        return {each.field for each in refusal.value.violations}


TAKEN_ONCE = [
    {"http": http(Connection="close")},
    {"http": http(X_A="1", x_a="2")},
    {"shell": shell(0, -15)},
    {"shell": shell(cwd="work")},
    {"shell": shell(), "jitter": Duration(seconds=1)},
    {"shell": shell(), "labels": {"BAD KEY": "x"}},
]


@pytest.mark.parametrize("fields", TAKEN_ONCE)
async def test_a_job_with_fields_that_only_an_earlier_version_accepted_can_be_edited(fields):
    stored = Stored(**fields)
    edited = await stored.edited("timeout", timeout=Duration(seconds=7))
    assert edited.timeout.seconds == 7
    again = await stored.edited("*", **{"on_demand": True, "slots": 2, **fields})
    assert again.slots == 2, "a manifest that says all that is stored, and one thing more"


async def test_an_edit_that_adds_another_such_field_is_refused():
    stored = Stored(http=http(Connection="close"))
    assert (await stored.edited("http", http=http(Connection="close", X_B="1"))).http.headers
    assert await stored.refused("http", http=http(Connection="close", TE="trailers")) == {
        "http.headers"
    }
    assert await Stored(shell=shell(-15)).refused("shell", shell=shell(-15, -9)) == {
        "shell.success_codes"
    }


async def test_an_edited_schedule_is_checked_as_a_whole():
    past = Timestamp(seconds=int(NOW.timestamp()) - 7200)
    stored = Stored(on_demand=False, cron=["@daily"], end=past, shell=shell())
    assert (await stored.edited("timeout", timeout=Duration(seconds=7))).timeout.seconds == 7
    assert await stored.refused("cron", cron=["@hourly"]) == {"end"}


async def test_an_end_by_a_signal_is_refused_as_a_success_with_the_reason():
    with pytest.raises(InvalidArgumentError, match="an end by a signal is always a failure"):
        await Stored(shell=shell()).edited("shell", shell=shell(-15))


async def test_expressions_are_stored_with_the_dialect_they_were_written_in():
    spec = spec_of(job_pb2.Job(cron=["@daily"], definition_version=77))
    assert spec.definition_version == DIALECT, "whatever was sent"
    assert not spec_of(job_pb2.Job(on_demand=True, definition_version=77)).definition_version
    written = await Stored(shell=shell()).edited("cron", cron=["@daily"])
    assert written.definition_version == DIALECT
    again = await Stored(shell=shell()).edited(
        "*", cron=["@daily"], shell=shell(), definition_version=77
    )
    assert again.definition_version == DIALECT


def test_fields_that_an_older_owner_would_ignore_need_a_later_dialect():
    every = {"every": Duration(seconds=86_400), "time_zone": "Europe/Berlin"}
    anchored = job_pb2.Job(anchor="2026-01-06T09:00:00", **every)
    assert spec_of(anchored).definition_version == 8
    assert not spec_of(job_pb2.Job(**every)).definition_version
    for cron, version in ((["0 3 L-3 * *"], 8), (["0 3 L * *"], DIALECT)):
        assert spec_of(job_pb2.Job(cron=cron)).definition_version == version
    excluded = job_pb2.Exclude(cron=["* * L-3 * *"])
    assert spec_of(job_pb2.Job(every=every["every"], exclude=excluded)).definition_version == 8


@pytest.mark.parametrize(
    ("policy", "field", "problem"),
    [
        ({"retry_on": ["75", "nope"]}, "retry.retry_on", "'nope' isn't a valid kind of failure"),
        (
            {"fail_on": ["requests.Timeout"]},
            "retry.fail_on",
            "give only the name of the class: Timeout",
        ),
        ({"fail_on": ["75"] * 101}, "retry.fail_on", "has 101 entries; at most 100 are allowed"),
    ],
)
def test_an_unknown_failure_name_is_refused_by_its_field(policy, field, problem):
    job = job_pb2.Job(name="j", cron=["@daily"], shell=shell(), retry=job_pb2.RetryPolicy(**policy))
    with pytest.raises(InvalidArgumentError) as refused:
        validation.check(requested(job), NOW)
    [violation] = refused.value.violations
    assert violation.field == field
    assert problem in violation.problem


async def test_an_edit_of_other_fields_keeps_the_dialect():
    """The same value isn't an edit, even if an earlier version stored the job without it."""
    stored = Stored(on_demand=False, cron=["@daily"], shell=shell())
    assert not (await stored.edited("slots", slots=2)).definition_version
    same = await stored.edited("*", cron=["@daily"], shell=shell())
    assert (same.definition_version, same.generation) == (0, 1)
    assert (await stored.edited("cron", cron=["@hourly"])).definition_version == DIALECT


async def test_a_dialect_cannot_be_edited():
    with pytest.raises(InvalidArgumentError, match="definition_version: can't be edited"):
        await Stored(shell=shell()).edited("definition_version", definition_version=2)


async def test_fields_of_a_replaced_schedule_kind_are_removed_with_it():
    gap = job_pb2.DstPolicy(gap=job_pb2.DstPolicy.GAP_SKIP)
    daily = Stored(on_demand=False, cron=["@daily"], dst=gap, shell=shell())
    hourly = await daily.edited("every", every=Duration(seconds=3600))
    assert not hourly.HasField("dst")
    assert (await daily.edited("cron", cron=["@hourly"])).dst == gap
    assert await daily.refused("every", "dst", every=Duration(seconds=3600), dst=gap) == {"dst"}
    spans = Stored(
        on_demand=False, every=Duration(seconds=60), phase=Duration(seconds=5), shell=shell()
    )
    assert not (await spans.edited("cron", cron=["@daily"])).HasField("phase")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"paused_until": Timestamp(seconds=int(NOW.timestamp()) + 60)}, "paused_until"),
        ({"paused": True, "pause_note": "of two\nlines"}, "pause_note"),
    ],
)
async def test_an_impossible_pause_of_a_manifest_is_refused_before_anything_is_stored(
    fields, field
):
    stored = Stored(on_demand=False, cron=["@daily"], shell=shell())
    assert await stored.refused("*", cron=["@daily"], shell=shell(), **fields) == {field}
    assert (await stored.edited("slots", slots=2, **fields)).slots == 2, "it names no pause"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {
                "cron": ["@daily", "30 2 * 3 7L"],
                "time_zone": "Europe/Berlin",
                "dst": job_pb2.DstPolicy(gap=job_pb2.DstPolicy.GAP_SKIP),
            },
            "'30 2 * 3 7L' never matches: clock changes of the time zone skip all its times",
        ),
        ({"cron": ["@daily", "61 * * * *", "0 5 * * *"]}, "'61 * * * *': "),
    ],
)
def test_the_wrong_one_of_several_expressions_is_named(fields, problem):
    with pytest.raises(InvalidArgumentError) as refused:
        validation.check(requested(job_pb2.Job(name="j", shell=shell(), **fields)), NOW)
    [violation] = refused.value.violations
    assert violation.field == "cron"
    assert violation.problem.startswith(problem)


def test_a_note_without_a_pause_is_refused():
    wrong = job_pb2.Job(name="j", shell=shell(), cron=["@daily"], pause_note="disks")
    with pytest.raises(InvalidArgumentError, match="pause_note: requires paused: true"):
        validation.check(requested(wrong), NOW)


def test_an_instant_is_stored_in_milliseconds_as_shown():
    at = Timestamp(seconds=7, nanos=555_013_000)
    assert spec_of(job_pb2.Job(at=at)).at.nanos == 555_000_000


async def test_an_ended_pause_blocks_no_edit():
    """A caller may read the job while it is paused and write it back later."""
    stored = Stored(on_demand=False, cron=["@daily"], shell=shell())
    over: dict[str, Any] = {"paused": True, "paused_until": Timestamp(seconds=7)}
    edited = await stored.edited("*", cron=["@hourly"], shell=shell(), **over)
    assert (edited.cron, edited.paused) == (["@hourly"], False)


async def test_a_patch_that_names_only_the_kind_takes_the_fields_of_that_kind():
    gap = job_pb2.DstPolicy(gap=job_pb2.DstPolicy.GAP_SKIP)
    daily = Stored(on_demand=False, cron=["@daily"], dst=gap, shell=shell())
    at = Timestamp(seconds=int(NOW.timestamp()) + 3600)
    once = await daily.edited("at", at=at, cron=["@daily"])
    assert (list(once.cron), once.HasField("dst")) == ([], False)
    hourly = await daily.edited("cron", cron=["@hourly"], every=Duration(seconds=60))
    assert (hourly.dst, hourly.HasField("every")) == (gap, False)


async def test_a_duration_of_zero_is_kept_and_a_missing_one_is_the_default():
    zero = Duration()
    spec = job_pb2.Job(on_demand=True, catch_up=job_pb2.CatchUp(window=zero), kill_after=zero)
    assert read(spec).catch_up.window == read(spec).kill_after == timedelta(0)
    plain = read(job_pb2.Job(on_demand=True))
    assert (plain.catch_up.window, plain.kill_after) == (timedelta(hours=1), timedelta(seconds=10))


def read(spec: job_pb2.Job) -> Definition:
    return requested(spec).parsed
