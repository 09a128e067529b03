"""`schedctl job backfill`: its request, and its reports while it continues."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import run_service_pb2 as runs

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
RANGE = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T02:00:00Z")


def backfill(state: str = "ACTIVE", **fields: int) -> jobs.Backfill:
    made = jobs.Backfill(
        backfill_id="b1",
        job="etl",
        state=jobs.Backfill.State.Value(f"STATE_{state}"),
        total=3,
        max_parallel=1,
        priority=common_pb2.PRIORITY_LOW,
        **fields,
    )
    getattr(made, "from").FromDatetime(FIRST)
    made.to.FromDatetime(FIRST + timedelta(hours=2))
    return made


def planned(made: jobs.Backfill | None = None) -> jobs.BackfillJobResponse:
    answer = jobs.BackfillJobResponse(backfill=made)
    for hour in (0, 1):
        answer.instants.add().FromDatetime(FIRST + timedelta(hours=hour))
    omitted = answer.omitted.add(state=common_pb2.RUN_STATE_SUCCEEDED, why="it has run")
    omitted.scheduled_at.FromDatetime(FIRST + timedelta(hours=2))
    return answer


async def test_a_dry_run_lists_the_instants_and_the_omitted_ones(ctl, member):
    member.say("BackfillJob", planned())

    ended = await ctl("job", "backfill", "etl", *RANGE, "--dry-run")

    assert ended.code == 0, ended.err
    assert ended.lines == ["SCHEDULED", "2026-01-01T00:00:00.000Z", "2026-01-01T01:00:00.000Z"]
    assert "omitted: 2026-01-01T02:00:00.000Z: it has run" in ended.err
    assert "2 scheduled times would run; nothing was stored" in ended.err
    [sent] = member.received("BackfillJob")
    assert (sent.dry_run, sent.job, sent.max_parallel) == (True, "etl", 1)


async def test_a_backfill_is_sent_with_its_flags_and_shown(ctl, member):
    member.say("BackfillJob", planned(backfill(not_created=3)))

    ended = await ctl(
        *("job", "backfill", "etl", "--from", "7d", "--to", "1h", "--overlap", "allow"),
        *("--max-parallel", "4", "--priority", "high", "--rerun", "all"),
        *("--idempotency-key", "k"),
    )

    assert ended.code == 0, ended.err
    assert ended.lines[0].split()[:3] == ["BACKFILL", "JOB", "STATE"]
    assert ended.lines[1].split()[:3] == ["b1", "etl", "ACTIVE"]
    assert "the backfill continues: schedctl job backfills etl" in ended.err
    [sent] = member.received("BackfillJob")
    span = sent.to.ToDatetime(UTC) - getattr(sent, "from").ToDatetime(UTC)
    assert abs(span - timedelta(days=7, hours=-1)) < timedelta(minutes=1)
    assert (sent.overlap, sent.max_parallel, sent.priority) == (job_pb2.OVERLAP_ALLOW, 4, 3)
    assert (sent.rerun, sent.idempotency_key) == (jobs.BackfillJobRequest.RERUN_ALL, "k")


async def test_a_backfill_as_json_is_the_whole_answer(ctl, member):
    member.say("BackfillJob", planned(backfill()))

    ended = await ctl("job", "backfill", "etl", *RANGE, "-o", "json")

    assert ended.data["instants"] == ["2026-01-01T00:00:00.000Z", "2026-01-01T01:00:00.000Z"]
    assert ended.data["omitted"][0]["why"] == "it has run"
    assert ended.data["backfill"]["from"] == "2026-01-01T00:00:00.000Z"


RUNS = "for the missing runs, and with --rerun failed for the failed ones, too"
AGAIN = f"run the command again with {' '.join(RANGE)} {RUNS}"
LISTED = "schedctl run list --backfill b1 --state"


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ({"succeeded": 3}, 0, []),
        (
            {"succeeded": 2, "failed": 1},
            1,
            [f"1 of 3 runs didn't succeed (1 failed); to list them: {LISTED} failed", AGAIN],
        ),
        (
            {"succeeded": 1, "skipped": 2},
            1,
            [f"2 of 3 runs didn't succeed (2 skipped); to list them: {LISTED} skipped", AGAIN],
        ),
    ],
)
async def test_waiting_for_a_backfill_reports_its_progress_and_outcome(
    ctl, member, end, code, said
):
    """Exit code 0 means that the whole range has succeeded, without a gap."""
    member.say("BackfillJob", planned(backfill(not_created=3)))
    member.say(
        "WatchBackfill",
        [backfill(succeeded=1, running=1, not_created=1), backfill("DONE", **end)],
    )

    ended = await ctl("job", "backfill", "etl", *RANGE, "--wait")

    assert ended.code == code, ended.err
    _, before, going, done, *after = ended.err.splitlines()
    assert before == "0 of 3 ended, 3 remaining"
    assert going == "1 of 3 ended (1 succeeded), 1 running, 1 remaining"
    assert done.startswith("3 of 3 ended (")
    assert after == said


async def test_a_backfill_canceled_during_the_wait_reports_the_missing_runs(ctl, member):
    member.say("BackfillJob", planned(backfill(not_created=3)))
    member.say("WatchBackfill", [backfill("CANCELLED", succeeded=1, cancelled=1)])

    ended = await ctl("job", "backfill", "etl", *RANGE, "--wait")

    assert ended.code == 1, ended.err
    assert ended.err.splitlines()[-3:] == [
        f"1 of 3 runs didn't succeed (1 cancelled); to list them: {LISTED} cancelled",
        "1 of 3 scheduled times have no run: the backfill was cancelled",
        AGAIN,
    ]


async def test_the_command_for_the_rest_has_the_same_range_and_another_key(ctl, member):
    """`7d` is another by then, and the key gives this backfill again."""
    made = backfill("DONE", succeeded=1, skipped=2)
    made.to.FromDatetime(FIRST + timedelta(hours=2, microseconds=7))
    member.say("BackfillJob", planned(made))
    member.say("WatchBackfill", [made])

    asked = ("--from", "7d", "--to", "1h", "--idempotency-key", "k", "--wait")
    ended = await ctl("job", "backfill", "etl", *asked)

    assert ended.code == 1, ended.err
    assert ended.err.splitlines()[-1] == (
        "run the command again with --from 2026-01-01T00:00:00Z --to 2026-01-01T02:00:00.000007Z"
        f" and another idempotency key {RUNS}"
    )


@pytest.mark.slow
async def test_a_long_wait_makes_one_watch_request(ctl, member):
    """The operation ends later than any poll would have been sent."""
    done = asyncio.Event()
    member.say("BackfillJob", planned(backfill(not_created=3)))
    member.say("GetBackfill", backfill(not_created=3))
    member.say("WatchBackfill", [backfill(not_created=3), done, backfill("DONE", succeeded=3)])
    asyncio.get_running_loop().call_later(1.5, done.set)

    ended = await ctl("job", "backfill", "etl", *RANGE, "--wait", "--timeout", "20")

    assert ended.code == 0, ended.err
    assert [name for name, _ in member.requests] == ["BackfillJob", "WatchBackfill"]


async def test_an_operation_continues_after_the_timeout_of_the_wait(ctl, member):
    member.say("BackfillJob", planned(backfill(not_created=3)))
    member.say("WatchBackfill", [backfill(not_created=3), asyncio.Event()])

    ended = await ctl("job", "backfill", "etl", *RANGE, "--wait", "--timeout", "0.5")

    assert ended.code == 7
    assert "0 of 3 ended, 3 remaining" in ended.err
    assert "the operation continues; schedctl job backfills etl" in ended.err


async def test_backfills_are_listed_and_canceled(ctl, member):
    member.say("ListBackfills", jobs.ListBackfillsResponse(backfills=[backfill(not_created=3)]))
    member.say("CancelBackfill", backfill("CANCELLED", running=2))

    listed = await ctl("job", "backfills", "etl")
    cancelled = await ctl("job", "cancel-backfill", "b1")

    assert listed.lines[1].split()[:3] == ["b1", "etl", "ACTIVE"]
    assert "cancelled b1: 2 runs are being ended" in cancelled.err
    assert member.received("CancelBackfill")[0].backfill_id == "b1"
    assert member.received("ListBackfills")[0].job == "etl"


async def test_runs_are_listed_by_their_trigger(ctl, member):
    member.say("ListRuns", runs.ListRunsResponse())

    await ctl("run", "list", "--trigger", "backfill", "--backfill", "b1")

    [sent] = member.received("ListRuns")
    assert (sent.trigger, sent.backfill_id) == (4, "b1")


@pytest.mark.parametrize("wrong", [("--from", "yesterday"), ("--max-parallel", "0")])
async def test_invalid_instants_and_numbers_are_refused_before_any_request(ctl, member, wrong):
    ended = await ctl("job", "backfill", "etl", *RANGE, *wrong)

    assert ended.code == 2
    assert member.requests == []
