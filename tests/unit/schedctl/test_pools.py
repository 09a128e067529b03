"""`schedctl pool`, pools in manifests, and what commands on jobs say of them."""

from __future__ import annotations

import re

import pytest
from google.protobuf.duration_pb2 import Duration

from schedctl.manifests import manifests
from schedproto.v1 import job_pb2, run_pb2
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import pool_service_pb2 as pools
from schedproto.v1 import run_service_pb2 as runs
from support.repository import ROOT
from support.scripted import Refusal

RATE = pools.Rate(count=100, per=Duration(seconds=60))
REPORTS = pools.Pool(name="reports", limit=3, rate=RATE, version=7, jobs=2, running=3, waiting=9)
MANIFEST = """
name: etl
cron: "0 2 * * *"
pool: reports
shell: {argv: ["true"]}
---
kind: pool
name: reports
limit: 3
rate: 100/m
"""


def as_given(request: pools.SetPoolRequest) -> pools.Pool:
    """Return the pool as a member stores it, with the next version unless it only validates."""
    pool = pools.Pool()
    pool.CopyFrom(request.pool)
    pool.version += not request.validate_only
    return pool


def reports_with(**fields: object) -> pools.Pool:
    pool = pools.Pool()
    pool.CopyFrom(REPORTS)
    pool.MergeFrom(pools.Pool(**fields))
    return pool


def no_pool(request: pools.GetPoolRequest) -> Refusal:
    return Refusal("NOT_FOUND", f"there is no pool {request.pool!r}")


@pytest.fixture
def manifest(home):
    def written(text: str) -> str:
        file = home / "m.yaml"
        file.write_text(text)
        return str(file)

    return written


# -- Commands --


async def test_pools_are_listed_and_described_with_what_runs_and_waits(ctl, member):
    paused = reports_with(paused=True, pause_note="moving house", paused_by="me", recent=40)
    member.say("ListPools", pools.ListPoolsResponse(pools=[paused, pools.Pool(name="s")]))
    member.say("GetPool", paused)
    ended = await ctl("pool", "list")
    assert [line.split() for line in ended.lines] == [
        ["NAME", "STATE", "LIMIT", "RUNNING", "RATE", "RECENT", "WAITING", "JOBS"],
        ["reports", "PAUSED", "3", "3", "100/m", "40", "9", "2"],
        ["s", "active", "none", "0", "none", "0", "0"],
    ]
    ended = await ctl("pool", "describe", "reports")
    assert "Note:      moving house" in ended.lines
    ended = await ctl("pool", "describe", "reports", "-o", "json")
    assert (ended.data["rate"], ended.data["pauseNote"]) == ("100/m", "moving house")


async def test_named_fields_of_a_pool_are_changed_with_its_version(ctl, member):
    member.say("GetPool", REPORTS)
    member.say("SetPool", as_given)
    ended = await ctl("pool", "set", "reports", "--limit", "5")
    assert ended.code == 0, ended.err
    assert ended.err == "  limit: 3 → 5\n"
    checked, stored = (one.pool for one in member.received("SetPool"))
    assert stored == pools.Pool(name="reports", namespace="default", limit=5, rate=RATE, version=7)
    assert checked == stored
    ended = await ctl("pool", "set", "reports", "--no-limit", "--rate", "3/30s", "-o", "name")
    assert ended.lines == ["reports"]
    sent = member.received("SetPool")[-1].pool
    assert (sent.limit, sent.rate) == (0, pools.Rate(count=3, per=Duration(seconds=30)))
    await ctl("pool", "set", "reports", "--no-rate")
    assert not member.received("SetPool")[-1].pool.HasField("rate")


async def test_a_dry_run_shows_a_change_and_an_unchanged_pool_is_not_stored(ctl, member):
    member.say("GetPool", REPORTS)
    member.say("SetPool", as_given)
    ended = await ctl("pool", "set", "reports", "--no-rate", "--dry-run")
    assert ended.code == 1
    assert ended.err == "  rate: 100/m → none\nnothing was stored\n"
    ended = await ctl("pool", "set", "reports", "--rate", "100/60s")
    assert (ended.code, ended.err) == (0, "")
    assert {one.validate_only for one in member.received("SetPool")} == {True}


async def test_a_first_limit_or_rate_creates_the_pool(ctl, member):
    member.say("GetPool", no_pool)
    member.say("SetPool", as_given)
    ended = await ctl("pool", "set", "reports", "--rate", "100/m")
    assert ended.code == 0, ended.err
    sent = member.received("SetPool")[-1].pool
    assert (sent.limit, sent.rate, sent.version) == (0, RATE, 0)
    ended = await ctl("pool", "set", "other", "--no-limit")
    assert ended.code == 3
    assert "pool 'other' not found" in ended.err
    assert "schedctl pool set other --limit 3" in ended.err


async def test_a_pool_that_another_caller_changed_is_left_unchanged(ctl, member):
    member.say("GetPool", REPORTS)
    member.say("SetPool", Refusal("ABORTED", "pool 'reports' is version 8", "VERSION_MISMATCH"))
    ended = await ctl("pool", "set", "reports", "--limit", "5")
    assert ended.code == 5
    assert "is version 8" in ended.err


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ((), "no change is given"),
        (("--limit", "3", "--no-limit"), "--limit can't be combined with --no-limit"),
        (("--limit", "0"), "--limit"),
        (("--rate", "100"), "rate '100' has no time: write for example 100/s or 100/m"),
        (("--rate", "1.5/m"), "the count must be a whole number"),
    ],
)
async def test_an_empty_or_wrong_pool_change_is_refused_before_any_request(
    ctl, member, wrong, problem
):
    ended = await ctl("pool", "set", "reports", *wrong)
    assert ended.code == 2
    assert problem in ended.err
    assert member.requests == []


async def test_a_pool_is_paused_resumed_and_deleted(ctl, member):
    member.say("PausePool", reports_with(paused=True))
    member.say("ResumePool", REPORTS)
    member.say("GetPool", reports_with(paused=True), REPORTS)
    member.say("DeletePool", Refusal("FAILED_PRECONDITION", "is used by etl, b", "POOL_IN_USE"))
    ended = await ctl("pool", "pause", "reports", "--note", "moving house")
    assert (ended.code, ended.err) == (0, "paused reports\n")
    assert member.received("PausePool")[0].note == "moving house"
    assert (await ctl("pool", "resume", "reports")).err == "resumed reports\n"
    assert "wasn't paused" in (await ctl("pool", "resume", "reports")).err
    ended = await ctl("pool", "delete", "reports", "--yes")
    assert ended.code == 5
    assert "is used by etl, b" in ended.err


# -- Jobs --


async def test_jobs_are_put_into_a_pool_shown_with_it_and_taken_out(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    member.say("UpdateJob", lambda request: request.job)
    member.say("SubmitRun", run_pb2.Run(run_id="r"))
    words = ("job", "create", "etl", "--every", "30s", "--pool", "reports", "-o", "wide")
    ended = await ctl(*words, "--", "true")
    heads, cells = (line.split() for line in ended.lines)
    assert (cells[:3], cells[heads.index("POOL") + 1]) == (["etl", "every", "30s"], "reports")
    [sent] = member.received("CreateJob")
    member.say("GetJob", sent.job)
    member.say("ListNextInstants", jobs.ListNextInstantsResponse())
    member.say("ListRuns", runs.ListRunsResponse())
    described = (await ctl("job", "describe", "etl")).lines
    assert [line.split() for line in described if "ool:" in line] == [["Pool:", "reports"]]
    ended = await ctl("job", "patch", "etl", "--pool", "")
    assert "pool: reports → none" in ended.err
    asked = member.received("UpdateJob")[0]
    assert (list(asked.update_mask.paths), asked.job.pool) == (["pool"], "")
    await ctl("submit", "--pool", "reports", "--", "true")
    assert member.received("SubmitRun")[0].spec.pool == "reports"


# -- Manifests --


async def test_apply_stores_pools_before_the_jobs_that_name_them(ctl, member, manifest):
    member.say("GetPool", no_pool)
    member.say("SetPool", as_given)
    member.say("GetJob", Refusal("NOT_FOUND", "there is no job 'etl'"))
    member.say("CreateJob", lambda request: request.job)
    ended = await ctl("apply", "-f", manifest(MANIFEST))
    assert ended.code == 0, ended.err
    assert ended.lines == ["pool reports created", "job etl created"]
    [asked, made] = member.received("CreateJob")
    assert (asked.validate_only, asked.job.pool, made.job.pool) == (True, "", "reports")
    assert [call for call, _ in member.requests][-2:] == ["SetPool", "CreateJob"]


async def test_an_existing_job_takes_a_pool_and_a_calendar_of_the_same_apply(ctl, member, manifest):
    member.say("GetPool", no_pool)
    member.say("SetPool", as_given)
    member.say("GetCalendar", Refusal("NOT_FOUND", "there is no calendar 'off'"))
    member.say("ApplyCalendar", lambda request: request.calendar)
    there = job_pb2.Job(name="etl", cron=["0 2 * * *"], shell=job_pb2.ShellAction(argv=["true"]))
    member.say("GetJob", there)
    member.say("UpdateJob", there, job_pb2.Job(name="etl", generation=2, pool="reports"))
    both = MANIFEST.replace("pool: reports", "pool: reports\nexclude: {calendars: [off]}", 1)
    ended = await ctl("apply", "-f", manifest(both + "---\nkind: calendar\nname: off\n"))
    assert ended.code == 0, ended.err
    assert "job etl updated" in ended.lines
    assert "  pool: none → reports" in ended.err
    checked, stored = member.received("UpdateJob")
    assert (checked.validate_only, checked.job.pool) == (True, "")
    assert (stored.job.pool, list(stored.job.exclude.calendars)) == ("reports", ["off"])


async def test_an_existing_pool_is_shown_with_its_change_and_stored_with_its_version(
    ctl, member, manifest
):
    member.say("GetPool", REPORTS)
    member.say("SetPool", as_given)
    file = manifest("kind: pool\nname: reports\nlimit: 5\n")
    ended = await ctl("apply", "-f", file, "--dry-run")
    assert (ended.code, ended.lines) == (1, ["pool reports would be updated"])
    assert "pool reports:\n  limit: 3 → 5\n  rate: 100/m → none\n" in ended.err
    assert len(member.received("SetPool")) == 1
    await ctl("apply", "-f", file)
    sent = member.received("SetPool")[-1]
    assert (sent.validate_only, sent.pool.version) == (False, 7)
    ended = await ctl("apply", "-f", manifest("kind: pool\nname: reports\nlimit: 3\nrate: 100/m\n"))
    assert ended.lines == ["pool reports unchanged"]
    assert member.received("SetPool")[-1].validate_only


async def test_a_manifest_pauses_its_pool_and_resumes_none(ctl, member, manifest):
    member.say("GetPool", REPORTS, reports_with(paused=True))
    member.say("SetPool", as_given)
    member.say("PausePool", reports_with(paused=True, version=8))
    text = "kind: pool\nname: reports\nlimit: 5\nrate: 100/m\npaused: true\npause_note: why\n"
    ended = await ctl("apply", "-f", manifest(text))
    assert ended.lines == ["pool reports updated"]
    assert "  paused: why" in ended.err
    assert [call for call, _ in member.requests][-2:] == ["PausePool", "SetPool"]
    assert member.received("SetPool")[-1].pool.version == 8
    ended = await ctl("apply", "-f", manifest(text.replace("5", "3")))
    assert ended.lines == ["pool reports unchanged"]
    member.say("GetPool", no_pool)
    ended = await ctl("apply", "-f", manifest(text))
    assert ended.lines == ["pool reports created"]
    assert [call for call, _ in member.requests][-2:] == ["SetPool", "PausePool"]


async def test_a_manifest_with_a_version_overwrites_no_other_change(ctl, member, manifest):
    member.say("GetPool", REPORTS)
    member.say("SetPool", Refusal("ABORTED", "pool 'reports' is version 7", "VERSION_MISMATCH"))
    ended = await ctl("apply", "-f", manifest("kind: pool\nname: reports\nversion: 6\n"))
    assert ended.code == 5
    assert "m.yaml:1: reports: pool 'reports' is version 7" in ended.err
    assert "remove version" in ended.err


async def test_a_pool_manifest_needs_apply_and_the_given_namespace(ctl, member, manifest):
    file = manifest("kind: pool\nname: reports\nnamespace: a\n")
    ended = await ctl("apply", "-f", file, "--namespace", "b")
    assert "reports belongs to namespace a, but --namespace names b" in ended.err
    ended = await ctl("calendar", "apply", "-f", file)
    assert ended.code == 2
    assert "expected a calendar, found a pool" in ended.err
    assert member.requests == []


def test_the_manifest_of_the_page_is_valid():
    page = (ROOT / "docs" / "semantics" / "pools-and-limits.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    pool, job = manifests.parse("pools-and-limits.md", text)
    assert isinstance(pool, manifests.Manifest), pool
    assert isinstance(job, manifests.Manifest), job
    assert job.spec.pool == pool.spec.name
