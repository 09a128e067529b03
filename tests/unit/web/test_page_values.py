"""Values of pages, made of messages: timelines, calendars, rings, forecasts and forms."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import pytest

from schedd.api.errors import InvalidArgumentError
from schedd.api.services import Caller
from schedd.core.ids import SHARDS, JobId, new_id
from schedd.core.runs.lifecycle import State
from schedd.core.runs.records import StoredDefinition
from schedd.web.formatting import LOOKS
from schedd.web.pages.cluster.cluster import AUDIT_READ, NO_OWNER, deeds, in_words, ring, rows_of
from schedd.web.pages.jobs import forecast
from schedd.web.pages.jobs.forecast import KEPT as FORECASTS
from schedd.web.pages.jobs.forecast import MILD, Counted, ForecastSeen, foreseen, heat
from schedd.web.pages.jobs.job import almanac, definition, does, facts, paused
from schedd.web.pages.jobs.new_job import job_of
from schedd.web.pages.page import PageRequest
from schedd.web.pages.runs.dead_letters import rate_of
from schedd.web.pages.runs.log import LogPart, LogText, Newest
from schedd.web.pages.runs.run import story
from schedproto.v1 import cluster_service_pb2 as cluster_pb
from schedproto.v1 import common_pb2, job_pb2, run_pb2
from support.callers import TESTER
from support.wait import WAIT_TIMEOUT, wait_until_async

NOW = datetime(2026, 3, 4, 12, 0, 5, tzinfo=UTC)


def run_at(at: datetime, state: State = State.SUCCEEDED) -> run_pb2.Run:
    made = run_pb2.Run(state=common_pb2.RunState.Value(f"RUN_STATE_{state}"), count=1)
    made.scheduled_at.FromDatetime(at)
    made.due_at.FromDatetime(at)
    return made


# -- a run's story --


def attempt(number: int, token: int, began: float, ended: float, state: State) -> run_pb2.Attempt:
    made = run_pb2.Attempt(
        attempt=number,
        fencing_token=token,
        worker="w1",
        state=common_pb2.RunState.Value(f"RUN_STATE_{state}"),
    )
    made.assigned_at.FromDatetime(NOW + timedelta(seconds=began))
    made.started_at.FromDatetime(NOW + timedelta(seconds=began + 0.25))
    made.finished_at.FromDatetime(NOW + timedelta(seconds=ended))
    return made


def test_a_timeline_is_ordered_by_time_and_shows_the_tokens() -> None:
    attempts = [attempt(2, 8, 5, 6, State.SUCCEEDED), attempt(1, 7, 1, 2, State.FAILED)]
    steps = list(story(run_at(NOW), attempts, []))
    assert [(step.what, step.token) for step in steps] == [
        ("due", 0),
        ("attempt 1 assigned to w1", 7),
        ("attempt 1 started", 7),
        ("attempt 1 failed", 7),
        ("attempt 2 assigned to w1", 8),
        ("attempt 2 started", 8),
        ("attempt 2 succeeded", 8),
    ]
    assert steps[0].since is None
    assert steps[2].since == timedelta(milliseconds=250)


def test_a_timeline_shows_a_rejected_result_with_its_stale_token() -> None:
    entry = cluster_pb.AuditEntry(
        actor="worker/w2", action="result", outcome="refused", reason="STALE", fencing_token=7
    )
    entry.at.FromDatetime(NOW + timedelta(seconds=9))
    *_, step = story(run_at(NOW), [], [entry])
    assert step.refused
    assert (step.what, step.token) == ("result refused", 7)
    assert "stale" in step.detail


def test_a_step_without_a_time_isnt_shown() -> None:
    assert list(story(run_pb2.Run(), [run_pb2.Attempt(attempt=1)], [cluster_pb.AuditEntry()])) == []


def test_a_timeline_shows_the_note_of_a_person_in_words() -> None:
    entry = cluster_pb.AuditEntry(
        actor="user/ann",
        action="cancel",
        outcome="ok",
        after='{"state":"CANCELLED","reason":"too late"}',
    )
    entry.at.FromDatetime(NOW + timedelta(seconds=9))
    *_, step = story(run_at(NOW), [], [entry])
    assert step.detail == "by user/ann · reason: too late"


def test_a_caller_with_a_token_is_shown_with_the_token() -> None:
    source = "ipv4:127.0.0.1:4711 token:0b7a58b2-5b8e-4f7c-8f0e-2f4d8a9c1e77"
    entry = cluster_pb.AuditEntry(actor="user/dev", action="cancel", outcome="ok", source=source)
    entry.at.FromDatetime(NOW + timedelta(seconds=9))
    *_, step = story(run_at(NOW), [], [entry])
    assert step.detail == "by user/dev (token 0b7a58b2)"
    [deed] = deeds([entry])
    assert deed.actor == "user/dev (token 0b7a58b2)"


def test_the_timeline_of_a_submit_omits_the_definition() -> None:
    after = '{"namespace":"default","shell":{"argv":["true"]}}'
    entry = cluster_pb.AuditEntry(actor="user/ann", action="submit", outcome="ok", after=after)
    entry.at.FromDatetime(NOW + timedelta(seconds=9))
    *_, step = story(run_at(NOW), [], [entry])
    assert step.detail == "by user/ann"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('{"paused":true,"by":"user/ann","note":"disks"}', "note: disks"),
        ('{"paused":false,"catchUp":true}', "catch up"),
        ('{"leader":"m2","term":8,"reason":""}', "leader: m2 · term: 8"),
        ('{"runs":["a","b"],"rate":2.5}', "runs: a, b · rate: 2.5"),
        ("", ""),
        ("[1]", "[1]"),
        ("{ no JSON", "{ no JSON"),
    ],
)
def test_a_change_is_shown_in_words_and_other_text_unchanged(change: str, words: str) -> None:
    assert in_words(change) == words


def done(action: str, at: int, **fields: str) -> cluster_pb.AuditEntry:
    made = cluster_pb.AuditEntry(action=action, actor="user/ann", **fields)
    made.at.seconds = at
    return made


def test_actions_on_the_cluster_and_its_leader_are_in_one_order() -> None:
    refused = done("transfer-leader", 7, outcome="refused", reason="NO_SUCH_MEMBER")
    found = deeds([done("resume", 8), done("pause", 6), refused])
    assert [deed.action for deed in found] == ["resume", "transfer leader", "pause"]
    assert found[1].detail == "no such member"
    many = deeds(done("pause", at) for at in range(30))
    assert (len(many), many[0].at.second) == (AUDIT_READ, 29)


# -- calendars of results --


def newest_first(*ages: timedelta, state: State = State.SUCCEEDED) -> list[run_pb2.Run]:
    return [run_at(NOW - age, state) for age in sorted(ages)]


def test_a_day_has_the_colour_of_the_worst_state_and_the_count_of_each() -> None:
    runs = [run_at(NOW), run_at(NOW, State.FAILED), run_at(NOW - timedelta(days=1))]
    found = almanac(runs, NOW, more=False)
    today = found.cells[-1]
    assert (found.by, today.look) == ("day", LOOKS["FAILED"])
    assert today.text == "Wed 04 Mar: 1 succeeded, 1 failed"
    assert (today.column, today.row) == (found.columns - 1, 2)
    assert today.until - today.since == timedelta(days=1)
    assert found.since is None


def test_a_job_that_runs_too_often_for_days_is_shown_by_the_hour() -> None:
    runs = newest_first(*(timedelta(minutes=at) for at in range(500)))
    found = almanac(runs, NOW, more=True)
    assert found.by == "hour"
    assert (found.cells[-1].row, found.cells[-1].column) == (6, 12)
    assert sum(int(cell.text.split(": ")[1].split()[0]) for cell in found.cells) == 500
    assert found.since == NOW - timedelta(minutes=499)


def test_merged_times_count_individually_and_old_ones_are_omitted() -> None:
    merged = run_at(NOW, State.MISSED)
    merged.count = 40
    found = almanac([merged, run_at(NOW - timedelta(days=400))], NOW, more=False)
    assert [cell.text for cell in found.cells] == ["Wed 04 Mar: 40 missed"]


def test_a_job_that_never_ran_has_an_empty_calendar() -> None:
    assert almanac([], NOW, more=False).cells == ()


# -- the ring --


def test_every_shard_is_in_the_ring_once_also_those_without_an_owner() -> None:
    owners = ["m1", "m2", "", "gone"]
    shards = [cluster_pb.Shard(shard=at, owner=owners[at % 4]) for at in range(SHARDS)]
    parts = dict(ring(shards, {"m1": 0, "m2": 1}))
    assert {colour: path.count("M") for colour, path in parts.items()} == {
        NO_OWNER: SHARDS // 2,
        0: SHARDS // 4,
        1: SHARDS // 4,
    }
    assert parts[0].startswith("M50.00 2.00A48 48 0 0 1 ")


def test_members_keep_their_colour_in_any_order() -> None:
    members = [cluster_pb.Member(name=name) for name in ("m3", "m1", "m2")]
    assert [(row.member.name, row.colour) for row in rows_of(members)] == [
        ("m1", 0),
        ("m2", 1),
        ("m3", 2),
    ]


# -- the forecast --


def test_the_forecast_counts_each_hour_and_names_the_hottest_minute() -> None:
    jobs = [
        job_pb2.Job(name="hourly", cron=["0 * * * *"]),
        job_pb2.Job(name="daily", cron=["0 9 * * *"]),
        job_pb2.Job(name="idle", cron=["* * * * *"], paused=True),
        job_pb2.Job(name="newer", cron=["what a later version knows"]),
        job_pb2.Job(name="button", on_demand=True),
    ]
    seen = foreseen(jobs, NOW.replace(hour=0, minute=0, second=0), more=False)
    assert seen.total == 7 * 24 + 7
    starts = {(hour.row, hour.column): hour.starts for hour in seen.hours}
    assert len(starts) == 7 * 24
    assert (starts[0, 9], starts[6, 10]) == (2, 1)
    hottest = seen.hottest[0]
    assert (hottest.starts, hottest.alike) == (2, 7)
    assert set(hottest.names) == {"hourly", "daily"}
    assert seen.left_out == ("1 paused", "1 with an unreadable schedule")


def test_a_forecast_begins_at_its_hour_and_ends_in_a_week_in_rows_of_days() -> None:
    hour = datetime(2026, 3, 4, 14, tzinfo=UTC)
    jobs = [
        job_pb2.Job(name="morning", cron=["0 9 * * *"]),
        job_pb2.Job(name="last", cron=["30 13 11 3 *"]),
        job_pb2.Job(name="after", cron=["0 14 11 3 *"]),
    ]
    seen = foreseen(jobs, hour, more=False)
    assert (seen.days[0], seen.days[-1], len(seen.days)) == ("Wed 04 Mar", "Wed 11 Mar", 8)
    hours = {(hour.row, hour.column): hour for hour in seen.hours}
    assert len(hours) == 7 * 24
    assert (min(hours), max(hours)) == ((0, 14), (7, 13)), "neither what is past, nor more"
    assert hours[0, 14].text == "Wed 04 Mar 14:00: 0"
    assert {at for at, hour in hours.items() if hour.starts} == {
        *((row, 9) for row in range(1, 8)),
        (7, 13),
    }
    assert seen.total == 8


def test_an_ended_schedule_has_no_forecast() -> None:
    jobs = [
        job_pb2.Job(name="once"),
        job_pb2.Job(name="button", on_demand=True),
        job_pb2.Job(name="hourly", cron=["0 * * * *"]),
    ]
    jobs[0].at.FromDatetime(NOW)
    hour = NOW.replace(minute=0, second=0)
    assert foreseen(jobs, hour, more=False).total == 7 * 24 + 1, "it is still to start"
    seen = foreseen(jobs, hour, more=False, idle={"once", "button"})
    assert (seen.total, seen.counted, seen.left_out) == (7 * 24, 2, ("1 done",))


def test_a_steady_load_beneath_all_hours_hides_no_peak() -> None:
    jobs = [
        job_pb2.Job(name="clock", cron=["* * * * *"]),
        job_pb2.Job(name="rush", cron=["* 9 * * *"]),
    ]
    seen = foreseen(jobs, NOW.replace(hour=0, minute=0, second=0), more=False)
    heats = {(hour.row, hour.column): hour.heat for hour in seen.hours}
    assert (heats[0, 9], heats[0, 8]) == (1.0, MILD)


def test_hours_with_almost_as_many_starts_are_almost_as_hot() -> None:
    assert heat(1_500, 1_500, 1_503) == MILD
    assert heat(1_503, 1_500, 1_503) - MILD < 0.1
    assert (heat(7, 7, 7), heat(0, 1, 7)) == (MILD, 0.0)


def test_a_partial_forecast_is_marked() -> None:
    seen = foreseen([job_pb2.Job(name="one", on_demand=True)], NOW, more=True)
    assert seen.left_out == ("all but the newest 1",)
    assert {hour.heat for hour in seen.hours} == {0.0}


def stored(
    name: str, cron: str = "0 * * * *", *, paused: bool = False, idle: bool = False
) -> StoredDefinition:
    spec = job_pb2.Job(cron=[cron]).SerializeToString(deterministic=True)
    return StoredDefinition(JobId(new_id()), 1, "default", name, spec, paused, idle=idle)


def test_a_forecast_is_computed_once_for_the_same_definitions_and_hour() -> None:
    counted, today = Counted(), NOW.replace(hour=0, minute=0, second=0)
    first = counted.forecast_from([stored("etl"), stored("report")], today)
    assert first.total == 2 * 7 * 24
    assert counted.forecast_from([stored("etl"), stored("report")], today) is first
    for total, jobs, start in (
        (7 * 24, [stored("etl")], today),
        (7 * 24, [stored("etl"), stored("report", paused=True)], today),
        (7 * 24, [stored("etl"), stored("report", idle=True)], today),
        (8 * 24, [stored("etl"), stored("report", "0 0-23 * * 0")], today),
        (2 * 7 * 24, [stored("etl"), stored("reports")], today),
        (2 * 7 * 24, [stored("etl"), stored("report")], today + timedelta(hours=1)),
    ):
        other = counted.forecast_from(jobs, start)
        assert other != first
        assert other.total == total
    assert counted.forecast_from([stored("etl"), stored("report")], today) is first, (
        "it is kept beside them"
    )


def test_the_last_requested_forecasts_are_kept() -> None:
    counted, today = Counted(), NOW.replace(hour=0, minute=0, second=0)
    often = counted.forecast_from([stored("often")], today)
    once = counted.forecast_from([stored("once")], today)
    for number in range(FORECASTS):
        counted.forecast_from([stored(f"made-up-{number}")], today)
        assert counted.forecast_from([stored("often")], today) is often
    again = counted.forecast_from([stored("once")], today)
    assert again is not once
    assert again == once


async def test_waiting_forecasts_delay_no_other_work_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_go = threading.Event()
    counts = list[int]()

    def slowly(*_counted: object) -> ForecastSeen:
        counts.append(threading.get_ident())
        assert let_go.wait(WAIT_TIMEOUT)
        return ForecastSeen((), (), (), 0, 0, ())

    async def defined(*_asked: object) -> list[StoredDefinition]:
        return [stored(str(uuid4()))]

    monkeypatch.setattr(forecast, "_foreseen", slowly)
    monkeypatch.setattr(forecast, "newest_definitions", defined)
    asked = PageRequest(cast("Any", None), Caller(TESTER, source="test"))
    looks = [asyncio.ensure_future(forecast.PAGE.read(asked)) for _ in range(40)]
    await wait_until_async(lambda: counts, WAIT_TIMEOUT, "one that counts")
    try:
        async with asyncio.timeout(5):
            await asyncio.to_thread(time.monotonic)
    finally:
        let_go.set()
        await asyncio.gather(*looks)
    assert len(set(counts)) == 1


# -- jobs --


def test_a_definition_has_only_the_fields_a_person_wrote() -> None:
    job = job_pb2.Job(name="etl", job_id="x", generation=3, etag="e", cron=["0 2 * * *"])
    job.shell.argv.append("true")
    written = {"name": "etl", "cron": ["0 2 * * *"], "shell": {"argv": ["true"]}}
    assert json.loads(definition(job)) == written


@pytest.mark.parametrize(
    ("job", "action"),
    [
        (job_pb2.Job(shell=job_pb2.ShellAction(argv=["ls", "-l"])), "ls -l"),
        (job_pb2.Job(shell=job_pb2.ShellAction(script="ls")), "a script"),
        (job_pb2.Job(http=job_pb2.HttpAction(url="http://x/")), "POST http://x/"),
        (job_pb2.Job(python=job_pb2.PythonAction(handler="etl")), "the handler etl"),
        (job_pb2.Job(), ""),
    ],
)
def test_the_action_of_a_job_is_shown_in_a_line(job: job_pb2.Job, action: str) -> None:
    assert does(job) == action


def test_a_pause_is_shown_with_its_author_and_note() -> None:
    job = job_pb2.Job(paused=True, paused_by="ops", pause_note="disks")
    assert paused(job) == "paused by ops: disks"
    assert paused(job_pb2.Job()) == ""


def test_facts_show_the_defaults() -> None:
    shown_facts = dict(facts(job_pb2.Job(name="etl", created_by="me")))
    assert (shown_facts["Priority"], shown_facts["Overlap"], shown_facts["Attempts"]) == (
        "medium",
        "skip",
        "4",
    )
    assert "Pool" not in shown_facts


# -- forms --


def form(**fields: str) -> job_pb2.Job:
    return job_of({"name": "etl", "schedule": "cron", "action": "shell"} | fields)


def test_a_form_describes_a_job() -> None:
    job = form(when="0 9 * * *", time_zone="Europe/Berlin", what="run 'two words'", priority="HIGH")
    assert (list(job.cron), job.time_zone) == (["0 9 * * *"], "Europe/Berlin")
    assert list(job.shell.argv) == ["run", "two words"]
    assert job.priority == common_pb2.PRIORITY_HIGH


def test_a_form_accepts_each_schedule_and_each_action() -> None:
    assert form(schedule="every", when="1h30m", what="x").every.seconds == 5400
    assert form(schedule="at", when="2026-03-04T12:30", what="x").at.seconds == 1772627400
    assert form(schedule="on_demand", what="x").on_demand
    assert form(when="* * * * *", action="http", what="http://x", method="GET").http.method == "GET"
    assert form(when="* * * * *", action="python", what="etl").python.handler == "etl"
    assert form(when="* * * * *", what="x", payload='{"a": 1}').payload.json == '{"a":1}'


@pytest.mark.parametrize(
    ("when", "zone", "instant"),
    [
        ("2026-12-24T09:00", "", "2026-12-24T09:00:00Z"),
        ("2026-12-24T09:00", "Europe/Berlin", "2026-12-24T08:00:00Z"),
        ("2026-07-24T09:00:30", "Europe/Berlin", "2026-07-24T07:00:30Z"),
        ("2026-12-24T09:00:00+02:00", "", "2026-12-24T07:00:00Z"),
        ("2026-12-24T09:00:00Z", "", "2026-12-24T09:00:00Z"),
    ],
)
def test_a_single_time_is_local_to_the_zone_unless_it_has_an_offset(
    when: str, zone: str, instant: str
) -> None:
    made = form(schedule="at", when=when, time_zone=zone, what="x")
    assert made.at.ToJsonString() == instant


@pytest.mark.parametrize(
    ("schedule", "when", "zone", "error"),
    [
        ("at", "2026-03-29T02:30", "Europe/Berlin", "at: .* doesn't exist in Europe/Berlin"),
        (
            *("at", "2026-10-25T02:30", "Europe/Berlin"),
            r"write 2026-10-25T02:30:00\+02:00 or 2026-10-25T02:30:00\+01:00, and clear time_zone",
        ),
        ("at", "2026-12-24T09:00:00+02:00", "Europe/Berlin", "time_zone: .* has its own offset"),
        ("at", "2026-12-24T09:00:00Z", "UTC", "time_zone: .* has its own offset"),
        ("at", "2026-12-24T09:00", "Europe/Berln", "time_zone: .* mean Europe/Berlin\\?"),
        ("at", "soon", "", "at: .* isn't a valid time"),
        ("at", "2026-12-24", "Europe/Berlin", "at: .* isn't a valid time"),
        ("at", "0001-01-01T00:00", "Europe/Berlin", "at: .* out of range"),
        ("every", "90s", "Europe/Berlin", "time_zone: the field has no effect: an interval"),
        ("on_demand", "", "Europe/Berlin", "time_zone: the field has no effect: a job on demand"),
    ],
)
def test_an_invalid_zone_or_a_local_time_missing_in_it_is_rejected(
    schedule: str, when: str, zone: str, error: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=error):
        form(schedule=schedule, when=when, time_zone=zone, what="x")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"what": "x"}, "cron: the schedule's value is missing"),
        ({"when": "* * * * *"}, "shell: the action's value is missing"),
        ({"schedule": "", "what": "x"}, "schedule: no schedule is chosen"),
        (
            {"schedule": "on_demand", "when": "0 9 * * *", "what": "x"},
            "when: the field has no effect",
        ),
        ({"when": "* * * * *", "action": "dance", "what": "x"}, "action: the action is invalid"),
        ({"when": "* * * * *", "what": "don't"}, "can't be split into words"),
        ({"when": "* * * * *", "what": "x", "payload": "{"}, "payload: the value isn't valid JSON"),
        (
            {"when": "* * * * *", "what": "x", "payload": '{"a":1,"a":2}'},
            "payload: the value isn't valid JSON: the key 'a' is given twice",
        ),
        (
            {"when": "* * * * *", "what": "x", "payload": "[NaN]"},
            "payload: the value isn't valid JSON: the number NaN isn't valid JSON",
        ),
        (
            {"when": "* * * * *", "what": "x", "payload": "[1e400]"},
            "payload: the value isn't valid JSON: the number 1e400 is too large",
        ),
        (
            {"when": "* * * * *", "what": "x", "payload": '["\\ud800"]'},
            "payload: the value isn't valid JSON: a string",
        ),
        (
            {"when": "* * * * *", "what": "x", "payload": "[" * 101 + "]" * 101},
            "payload: is nested too deeply",
        ),
        ({"schedule": "every", "when": "soon", "what": "x"}, "every"),
        ({"when": "* * * * *", "what": "x", "priority": "URGENT"}, "priority"),
    ],
)
def test_an_invalid_form_is_rejected_with_its_field(fields: dict[str, str], error: str) -> None:
    with pytest.raises(InvalidArgumentError, match=error):
        form(**fields)


def test_a_rate_that_isnt_a_number_is_rejected() -> None:
    assert (rate_of({}), rate_of({"rate": "2.5"})) == (0.0, 2.5)
    with pytest.raises(InvalidArgumentError, match="'fast' isn't a number"):
        rate_of({"rate": "fast"})


# -- logs --


def parts(**piece: object) -> Sequence[tuple[str, bool, bool]]:
    return [(one.text, one.error, one.note) for one in LogText().parts(run_pb2.LogPiece(**piece))]


def test_pieces_of_a_log_show_their_stream_and_omitted_parts() -> None:
    stderr = run_pb2.LogPiece.STREAM_STDERR
    assert parts(data=b"\xff\n", stream=stderr, omitted=2048) == [
        ("2,048 bytes omitted", False, True),
        ("\N{REPLACEMENT CHARACTER}\n", True, False),
    ]
    assert parts(note="not kept") == [("not kept", False, True)]


def shown(*pieces: bytes) -> str:
    text = LogText()
    pieces_shown = [text.parts(run_pb2.LogPiece(data=data, fencing_token=7)) for data in pieces]
    return "".join(part.text for parts in pieces_shown for part in parts)


def test_terminal_escapes_arent_shown_even_if_split_between_pieces() -> None:
    assert shown(b"\x1b[1;31mred\x1b[0m and \x1b[2Kplain\n") == "red and plain\n"
    assert shown(b"a\x1b", b"[3", b"1mb \xc3", b"\xa9") == "ab \N{LATIN SMALL LETTER E WITH ACUTE}"
    link = b"\x1b]8;;http://x/\x1b", b"\\b\x1b]8;;\x1b\\"
    assert shown(b"\x1b]0;its title\x07a", *link, b"c") == "abc"
    assert shown(b"\x1b]0;never ended\nnext") == "\x1b]0;never ended\nnext"
    assert shown(b"[31m stays") == "[31m stays"


def test_the_newest_part_of_a_long_log_is_kept_and_the_rest_counted() -> None:
    found = Newest(10)
    found.add([LogPart("first", False)])
    assert [part.text for part in found.shown] == ["first"]
    found.add([LogPart("second", False), LogPart("third", True)])
    note, *rest = found.shown
    assert note.note
    assert "earlier" in note.text
    assert [part.text for part in rest] == ["second", "third"]
    found.add([LogPart("rest of a line\nfourth\n", False)])
    assert [part.text for part in found.shown[1:]] == ["fourth\n"]
    found.add([LogPart("fifth of many\n", False)])
    assert [part.text for part in found.shown[1:]] == ["fifth of many\n"], "it begins a line"


def test_a_forecast_counts_as_many_jobs_as_its_budget_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("schedd.web.pages.jobs.forecast.BUDGET", 5_000)
    jobs = [
        job_pb2.Job(name=f"j{number}", cron=[f"{number} 3,{number % 24} * * *"])
        for number in range(60)
    ]
    seen = foreseen(jobs, datetime(2026, 11, 28, 19, tzinfo=UTC), more=False)
    assert 0 < seen.counted < 60
    assert seen.left_out == (f"{60 - seen.counted} over the CPU budget of a forecast",)
