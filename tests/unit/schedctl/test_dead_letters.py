"""`schedctl dlq` and `run retry`: what is asked for, what is shown, what is refused beforehand."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest

from schedctl import contexts
from schedproto.v1 import common_pb2, run_pb2
from schedproto.v1 import run_service_pb2 as runs
from support.scripted import Refusal

DIED = datetime(2026, 11, 23, 10, tzinfo=UTC)
LISTED = "schedctl run list --trigger redrive"
TRACE = "Traceback (most recent call last):\n  File …\nKeyError: 'total'\n"


def dead(**fields: object) -> run_pb2.DeadLetter:
    run = run_pb2.Run(
        run_id="r",
        job="etl",
        state=common_pb2.RUN_STATE_FAILED,
        reason=common_pb2.REASON_EXIT_CODE,
        exit_code=3,
        attempt=4,
        error=TRACE,
    )
    made = run_pb2.DeadLetter(run=run, fingerprint="f1", **fields)
    made.died_at.FromDatetime(DIED)
    return made


def retried_run(run_id: str) -> run_pb2.Run:
    return run_pb2.Run(run_id=f"{run_id}-again", job="etl", state=1, redrive_of=run_id)


def redrive(state: str = "OPEN", **fields: object) -> run_pb2.Redrive:
    number = run_pb2.Redrive.State.Value(f"STATE_{state}")
    return run_pb2.Redrive(redrive_id="d1", fingerprint="f1", total=3, state=number, **fields)


def begun(made: run_pb2.Redrive | None = None) -> runs.RedriveDeadLettersResponse:
    return runs.RedriveDeadLettersResponse(total=3, redrive=made)


# -- Output --


async def test_letters_are_listed_by_filter(ctl, member):
    member.say("ListDeadLetters", runs.ListDeadLettersResponse(dead_letters=[dead()]))

    ended = await ctl("dlq", "list", "--job", "etl", "--fingerprint", "f1", "--limit", "3")

    assert ended.lines[0].split() == ["RUN", "JOB", "REASON", "ATTEMPT", "DIED", "FINGERPRINT"]
    assert ended.lines[1].split()[:4] == ["r", "etl", "EXIT_CODE", "4"]
    [sent] = member.received("ListDeadLetters")
    assert (sent.job, sent.fingerprint, sent.resolved) == ("etl", "f1", False)


@pytest.mark.parametrize("asked", [("--resolved",), ("--redrive", "d1")])
async def test_resolved_letters_show_their_resolution(ctl, member, asked):
    letter = dead(resolution=run_pb2.DeadLetter.RESOLUTION_REDRIVEN, redriven_as="n")
    member.say("ListDeadLetters", runs.ListDeadLettersResponse(dead_letters=[letter]))

    ended = await ctl("dlq", "list", *asked)

    assert ended.lines[0].split()[-2:] == ["RESOLVED", "AS"]
    assert ended.lines[1].split()[-2:] == ["REDRIVEN", "n"]
    [sent] = member.received("ListDeadLetters")
    assert (sent.resolved, sent.redrive_id) in {(True, ""), (False, "d1")}


async def test_groups_show_the_count_of_each_error_on_one_line(ctl, member):
    group = run_pb2.DeadLetterGroup(
        fingerprint="f1", job="etl", count=12, reason=1, error=TRACE, run_id="r"
    )
    member.say("ListDeadLetterGroups", runs.ListDeadLetterGroupsResponse(groups=[group]))

    ended = await ctl("dlq", "groups", "--job", "etl")
    named = await ctl("dlq", "groups", "-o", "name")

    heads = ["COUNT", "JOB", "OF", "REASON", "LAST", "FINGERPRINT", "RUN", "ERROR"]
    assert ended.lines[0].split() == heads
    assert len(ended.lines) == 2
    assert "… KeyError: 'total'" in ended.lines[1]
    assert ended.lines[1].split()[:2] == ["12", "etl"]
    assert named.lines == ["f1"]


async def test_groups_of_a_job_and_of_submitted_runs_with_its_name_are_distinct(ctl, member):
    groups = [
        run_pb2.DeadLetterGroup(fingerprint="f1", job=job, count=3, run_id="r", submitted=submitted)
        for job, submitted in (("boom", False), ("boom", True), ("", True))
    ]
    member.say("ListDeadLetterGroups", runs.ListDeadLetterGroupsResponse(groups=groups))

    ended = await ctl("dlq", "groups")

    rows = [line.split()[: 3 if "boom" in line else 2] for line in ended.lines[1:]]
    assert rows == [["3", "boom", "job"], ["3", "boom", "submitted"], ["3", "submitted"]]


async def test_a_long_error_pads_no_line_and_is_cut_at_the_terminal_width(ctl, member, monkeypatch):
    groups = [
        run_pb2.DeadLetterGroup(fingerprint=f"f{len(error)}", job="etl", error=error, run_id="r")
        for error in ("e" * 4_000, "short")
    ]
    member.say("ListDeadLetterGroups", runs.ListDeadLetterGroupsResponse(groups=groups))
    monkeypatch.setenv("COLUMNS", "100")

    piped = await ctl("dlq", "groups")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    shown = await ctl("dlq", "groups", "--color", "never")
    coloured = await ctl("dlq", "groups", "--color", "always")
    wide = await ctl("dlq", "groups", "--color", "never", "-o", "wide")
    data = await ctl("dlq", "groups", "-o", "json")

    assert "e" * 4_000 in piped.lines[1], "off a terminal nothing is cut"
    assert max(map(len, piped.lines[::2])) < 100
    assert len(shown.lines[1]) == 100
    assert shown.lines[1].endswith("eee…")
    assert [line.split()[-1] for line in shown.lines[::2]] == ["ERROR", "short"]
    assert "e" * 100 not in coloured.out
    assert "e" * 4_000 in wide.out
    assert data.data[0]["error"] == "e" * 4_000


async def test_a_letter_is_shown_with_its_error_attempts_and_remedy(ctl, member):
    member.say("GetDeadLetter", dead())
    attempt = run_pb2.Attempt(attempt=1, worker="w1", state=common_pb2.RUN_STATE_RETRYING)
    member.say("ListAttempts", runs.ListAttemptsResponse(attempts=[attempt]))

    ended = await ctl("dlq", "show", "r")

    assert ended.code == 0, ended.err
    assert "KeyError: 'total'" in ended.out
    assert any(line.split() == ["Resolved:", "no"] for line in ended.lines)
    assert "w1" in ended.lines[-1]
    assert "output: schedctl run logs r" in ended.err
    assert "run it again: schedctl dlq redrive r" in ended.err


async def test_a_redriven_letter_names_its_new_run(ctl, member):
    letter = dead(
        resolution=run_pb2.DeadLetter.RESOLUTION_REDRIVEN, redriven_as="n", resolved_by="ann"
    )
    member.say("GetDeadLetter", letter)
    member.say("ListAttempts", runs.ListAttemptsResponse())

    ended = await ctl("dlq", "show", "r")
    data = (await ctl("dlq", "show", "r", "-o", "json")).data

    assert "schedctl run get n" in ended.err
    assert "dlq redrive r" not in ended.err
    assert (data["resolution"], data["redrivenAs"], data["note"]) == ("REDRIVEN", "n", None)


async def test_a_redriven_run_names_the_run_that_it_repeats(ctl, member):
    member.say("GetRun", retried_run("r"))

    assert (await ctl("run", "get", "r-again")).lines[-1].split() == ["Redrive", "of:", "r"]


async def test_runs_are_listed_by_redrives(ctl, member):
    member.say("ListRuns", runs.ListRunsResponse())

    await ctl("run", "list", "--trigger", "redrive")

    assert member.received("ListRuns")[0].trigger == run_pb2.Run.TRIGGER_REDRIVE


# -- One by one --


async def test_a_run_is_retried_with_its_payload_or_another(ctl, member):
    member.say("RetryRun", retried_run("r"))

    ended = await ctl("run", "retry", "r", "-o", "name")
    await ctl("run", "retry", "r", "--payload", '{"new": 1}')

    assert ended.lines == ["r-again"]
    as_it_was, edited = member.received("RetryRun")
    assert not as_it_was.HasField("payload")
    assert json.loads(edited.payload.json) == {"new": 1}


async def test_each_named_run_is_redriven(ctl, member):
    member.say("RetryRun", lambda request: retried_run(request.run_id))

    ended = await ctl("dlq", "redrive", "r", "s", "--payload", "{}")

    assert ended.code == 0, ended.err
    assert [line.split()[0] for line in ended.lines] == ["RUN", "r-again", "s-again"]
    assert [one.payload.json for one in member.received("RetryRun")] == ["{}", "{}"]


async def test_a_rejected_redrive_does_not_stop_the_others(ctl, member):
    deleted = Refusal("FAILED_PRECONDITION", "the job of run s is deleted", "JOB_DELETED")
    member.say("RetryRun", lambda one: retried_run(one.run_id) if one.run_id != "s" else deleted)

    ended = await ctl("dlq", "redrive", "r", "s", "t", "-o", "name")

    assert ended.code == 5
    assert ended.lines == ["r-again", "t-again"]
    assert "the job of run s is deleted" in ended.err


# -- Many, at a rate --


@pytest.mark.parametrize(
    ("written", "rate"), [("100/s", 100), ("6/m", 0.1), ("90/h", 0.025), ("2.5", 2.5)]
)
async def test_a_redrive_is_requested_at_a_rate_and_shown(ctl, member, written, rate):
    member.say("RedriveDeadLetters", begun(redrive(rate=rate)))

    ended = await ctl("dlq", "redrive", "--group", "f1", "--rate", written)

    assert ended.code == 0, ended.err
    assert ended.lines[1].split()[:3] == ["d1", "f1", "OPEN"]
    assert "the redrive continues: schedctl dlq redrives; schedctl dlq stop d1" in ended.err
    [sent] = member.received("RedriveDeadLetters")
    assert (sent.fingerprint, sent.rate) == ("f1", pytest.approx(rate))


async def test_all_flags_of_a_redrive_are_sent(ctl, member):
    member.say("RedriveDeadLetters", begun(redrive()))

    await ctl("dlq", "redrive", "--all", "--idempotency-key", "k", "--note", "it is back")
    await ctl("dlq", "redrive", "--job", "etl", "--group", "f1", "--payload", '{"new": 1}')

    every, some = member.received("RedriveDeadLetters")
    assert (every.all, every.rate, every.idempotency_key) == (True, 0, "k")
    assert (every.note, some.note) == ("it is back", "")
    assert (some.job, some.fingerprint, some.all) == ("etl", "f1", False)
    assert json.loads(some.payload.json) == {"new": 1}


@pytest.mark.parametrize(
    ("row", "group"),
    [
        (("--job", "boom", "--of", "job"), {"job": "boom"}),
        (("--job", "boom", "--of", "submitted"), {"job": "boom", "submitted": True}),
        (("--of", "submitted"), {"submitted": True}),
    ],
)
async def test_one_row_of_groups_is_selected_and_its_dry_run_selects_the_same(
    ctl, member, row, group
):
    member.say("RedriveDeadLetters", begun(redrive()))
    member.say("DiscardDeadLetters", runs.DiscardDeadLettersResponse(discarded=3))

    await ctl("dlq", "redrive", "--group", "f1", *row, "--dry-run")
    await ctl("dlq", "redrive", "--group", "f1", *row)
    await ctl("dlq", "discard", "--group", "f1", *row)

    sent = [*member.received("RedriveDeadLetters"), *member.received("DiscardDeadLetters")]
    assert [one.group for one in sent] == [runs.ChosenGroup(fingerprint="f1", **group)] * 3
    assert [(one.job, one.fingerprint, one.all) for one in sent] == [("", "", False)] * 3


async def test_until_is_sent_as_written(ctl, member):
    member.say("RedriveDeadLetters", begun(redrive()))
    member.say("DiscardDeadLetters", runs.DiscardDeadLettersResponse(discarded=3))

    until = ("--until", "2026-11-23T10:00:00.911234Z", "--at-most", "3")
    redriven = await ctl("dlq", "redrive", "--group", "f1", "--of", "submitted", *until)
    await ctl("dlq", "discard", "--all", *until)
    await ctl("dlq", "discard", "--all")

    assert redriven.code == 0, redriven.err
    sent = [*member.received("RedriveDeadLetters"), *member.received("DiscardDeadLetters")]
    meant = DIED.replace(microsecond=911_234)
    assert [one.until.ToDatetime(tzinfo=UTC) for one in sent[:2]] == [meant, meant]
    assert not sent[2].HasField("until")
    assert [one.at_most for one in sent] == [3, 3, 0]


async def test_redrives_show_which_letters_they_cover(ctl, member):
    of = [{}, {"job": "boom", "submitted": False}, {"job": "boom", "submitted": True}]
    made = [redrive(**one) for one in of]
    member.say("ListRedrives", runs.ListRedrivesResponse(redrives=made))
    stands = iter(made)
    member.say("GetRedrive", lambda _: next(stands))

    ended = await ctl("dlq", "redrives")

    assert ended.lines[0].split()[:4] == ["REDRIVE", "JOB", "OF", "FINGERPRINT"]
    assert [line.split()[1:-5] for line in ended.lines[1:]] == [
        ["f1"],
        ["boom", "job", "f1"],
        ["boom", "submitted", "f1"],
    ]


async def test_a_dry_run_shows_the_count(ctl, member):
    member.say("RedriveDeadLetters", begun())

    ended = await ctl("dlq", "redrive", "--all", "--dry-run")
    data = (await ctl("dlq", "redrive", "--all", "--dry-run", "-o", "json")).data

    assert ended.lines == ["Dead letters: 3"]
    assert ended.err == "nothing was stored\n"
    assert data == {"total": 3, "redrive": None}
    assert all(one.dry_run for one in member.received("RedriveDeadLetters"))


async def test_waiting_for_a_redrive_reports_its_progress(ctl, member):
    stands = [redrive(created=1, runs={"RUNNING": 1}), redrive("DONE", created=2, omitted=1)]
    member.say("RedriveDeadLetters", begun(redrive()))
    member.say("WatchRedrive", stands)

    ended = await ctl("dlq", "redrive", "--all", "--wait", "-o", "json")

    assert ended.code == 0, ended.err
    assert ended.err.splitlines() == [
        "0 of 3 created",
        "1 of 3 created (1 running)",
        "2 of 3 created, 1 omitted",
    ]
    assert (ended.data["state"], ended.data["created"], ended.data["omitted"]) == ("DONE", 2, 1)
    assert [name for name, _ in member.requests] == ["RedriveDeadLetters", "WatchRedrive"]


@pytest.mark.slow
async def test_a_long_wait_makes_one_watch_request(ctl, member):
    """The operation ends later than any poll would have been sent."""
    done = asyncio.Event()
    member.say("RedriveDeadLetters", begun(redrive()))
    member.say("ResumeRedrive", redrive(created=1))
    member.say("GetRedrive", redrive())
    for words, asked in (
        (("redrive", "--all"), "RedriveDeadLetters"),
        (("resume", "d1"), "ResumeRedrive"),
    ):
        member.requests.clear()
        done.clear()
        member.say("WatchRedrive", [redrive(), done, redrive("DONE", created=3)])
        asyncio.get_running_loop().call_later(1.0, done.set)
        ended = await ctl("dlq", *words, "--wait", "--timeout", "20")
        assert ended.code == 0, ended.err
        assert [name for name, _ in member.requests] == [asked, "WatchRedrive"]


@pytest.mark.parametrize(
    ("words", "asked"),
    [(("redrive", "--all"), "RedriveDeadLetters"), (("resume", "d1"), "ResumeRedrive")],
)
async def test_runs_that_failed_again_are_reported_with_exit_1(ctl, member, words, asked):
    member.say(asked, begun(redrive()) if asked == "RedriveDeadLetters" else redrive(created=1))
    member.say("WatchRedrive", redrive("DONE", created=3, runs={"FAILED": 2, "SUCCEEDED": 1}))

    ended = await ctl("dlq", *words, "--wait")

    assert ended.code == 1, ended.err
    assert ended.err.splitlines()[1:] == [
        "3 of 3 created (2 failed, 1 succeeded)",
        f"2 of 3 runs didn't succeed (2 failed); to list them: {LISTED} --state failed",
    ]


async def test_waiting_includes_runs_in_progress_after_the_last_is_created(ctl, member):
    made = redrive("DONE", created=3, runs={"RUNNING": 1, "SUCCEEDED": 2}, job="etl")
    ended_badly = redrive("DONE", created=3, runs={"CANCELLED": 1, "SUCCEEDED": 2}, job="etl")
    member.say("RedriveDeadLetters", begun(redrive(job="etl")))
    member.say("WatchRedrive", [made, ended_badly])

    ended = await ctl("dlq", "redrive", "--job", "etl", "--wait")
    assert [name for name, _ in member.requests] == ["RedriveDeadLetters", "WatchRedrive"]

    assert ended.code == 1, ended.err
    assert ended.err.splitlines() == [
        "0 of 3 created",
        "3 of 3 created (1 running, 2 succeeded)",
        "3 of 3 created (1 cancelled, 2 succeeded)",
        (
            "1 of 3 runs didn't succeed (1 cancelled);"
            f" to list them: {LISTED} --job etl --state cancelled"
        ),
    ]


async def test_a_repeated_key_shows_the_states_of_the_finished_redrive(ctl, member):
    member.say("RedriveDeadLetters", begun(redrive("DONE", created=3)))
    member.say("GetRedrive", redrive("DONE", created=3, runs={"RUNNING": 3}))
    member.say("WatchRedrive", redrive("DONE", created=3, runs={"SUCCEEDED": 3}))

    ended = await ctl("dlq", "redrive", "--all", "--wait", "--idempotency-key", "k")

    assert ended.code == 0, ended.err
    assert ended.err.splitlines() == ["3 of 3 created (3 running)", "3 of 3 created (3 succeeded)"]


async def test_a_stopped_redrive_ends_the_wait(ctl, member):
    member.say("RedriveDeadLetters", begun(redrive()))
    member.say("WatchRedrive", redrive("STOPPED", created=1))

    ended = await ctl("dlq", "redrive", "--all", "--wait")

    assert ended.code == 1
    assert "stopped: 2 of 3 remain; schedctl dlq resume d1" in ended.err


async def test_an_operation_continues_after_the_timeout_of_the_wait(ctl, member):
    member.say("RedriveDeadLetters", begun(redrive()))
    member.say("WatchRedrive", [redrive(), asyncio.Event()])

    ended = await ctl("dlq", "redrive", "--all", "--wait", "--timeout", "0.5")

    assert ended.code == 7
    assert "the operation continues; schedctl dlq stop d1 stops it" in ended.err


async def test_a_redrive_is_stopped_and_resumed(ctl, member):
    member.say("StopRedrive", redrive("STOPPED", created=1))
    member.say("ResumeRedrive", redrive(created=1))
    member.say("WatchRedrive", redrive("DONE", created=3))
    member.say("ListRedrives", runs.ListRedrivesResponse(redrives=[redrive("STOPPED", rate=0.1)]))

    stopped = await ctl("dlq", "stop", "d1")
    resumed = await ctl("dlq", "resume", "d1", "--wait")
    member.say("GetRedrive", redrive("STOPPED", rate=0.1, created=2, runs={"FAILED": 2}))
    listed = await ctl("dlq", "redrives")

    assert "stopped d1: 2 of 3 remain; schedctl dlq resume d1" in stopped.err
    assert (resumed.code, resumed.err.splitlines()) == (0, ["1 of 3 created", "3 of 3 created"])
    assert listed.lines[1].split() == ["d1", "f1", "STOPPED", "6/m", "3", "2", "1", "FAILED=2"]


# -- Discarded --


async def test_letters_are_discarded_by_name_or_by_group(ctl, member):
    member.say("DiscardDeadLetters", runs.DiscardDeadLettersResponse(discarded=2))

    named = await ctl("dlq", "discard", "r", "s", "t", "--note", "known")
    chosen = await ctl("dlq", "discard", "--group", "f1", "-o", "json")

    assert named.err.splitlines() == [
        "discarded 2",
        "unchanged: 1, already resolved or queued for a redrive",
    ]
    assert (chosen.data, chosen.err) == ({"discarded": 2}, "discarded 2\n")
    first, second = member.received("DiscardDeadLetters")
    assert (list(first.run_ids), first.note) == (["r", "s", "t"], "known")
    assert (second.fingerprint, list(second.run_ids)) == ("f1", [])


@pytest.mark.parametrize("chosen", [("r",), ("--group", "f1"), ("--all",)])
async def test_a_protected_cluster_needs_confirmation_before_letters_are_discarded(
    ctl, member, monkeypatch, chosen
):
    contexts.save("prod", [member.address])
    contexts.path().write_text(contexts.path().read_text() + "protected = true\n")
    monkeypatch.delenv("SCHEDCTL_ENDPOINTS")
    member.say("DiscardDeadLetters", runs.DiscardDeadLettersResponse(discarded=1))

    refused = await ctl("dlq", "discard", *chosen, "--no-input")

    assert refused.code == 2
    assert "--yes" in refused.err
    assert member.requests == []
    assert (await ctl("dlq", "discard", *chosen, "--yes")).code == 0


async def test_the_confirmation_of_a_discard_names_the_group(ctl, member, monkeypatch):
    contexts.save("prod", [member.address])
    contexts.path().write_text(contexts.path().read_text() + "protected = true\n")
    monkeypatch.delenv("SCHEDCTL_ENDPOINTS")

    questions = [
        (await ctl("dlq", "discard", "--group", "f1", *row, "--no-input")).err
        for row in (("--job", "boom"), ("--job", "boom", "--of", "submitted"))
    ]

    assert "discard the dead letters of boom with the fingerprint f1" in questions[0]
    assert "of submitted runs named boom with the fingerprint f1" in questions[1]


# -- Refused before it is sent --


@pytest.mark.parametrize("command", ["redrive", "discard"])
@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ((), "no dead letters are selected"),
        (("r", "--group", "f1"), "RUN can't be combined with --group, --job or --all"),
        (("r", "--all"), "RUN can't be combined with --group, --job or --all"),
        (("--all", "--job", "etl"), "--all can't be combined with --group or --job"),
        (("--job", "", "--group", "f1"), "the value is empty"),
        (("--of", "submitted"), "--of needs --group"),
        (("--job", "etl", "--of", "job"), "--of needs --group"),
        (("--group", "f1", "--of", "job"), "--of job needs --job"),
        (("r", "--of", "submitted"), "RUN can't be combined with --of, --until or --at-most"),
        (("r", "--until", "10m"), "RUN can't be combined with --of, --until or --at-most"),
        (("r", "--at-most", "1"), "RUN can't be combined with --of, --until or --at-most"),
        (("--all", "--at-most", "0"), "--at-most"),
        (("--until", "10m"), "no dead letters are selected"),
        (("--all", "--until", "then"), "or an age"),
    ],
)
async def test_an_unclear_selection_is_refused_before_it_is_sent(
    ctl, member, command, wrong, problem
):
    ended = await ctl("dlq", command, *wrong)

    assert ended.code == 2
    assert problem in ended.err
    assert member.requests == []


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (("--all", "--rate", "fast"), "isn't a valid rate: write 100/s, 6/m or 90/h"),
        (("--all", "--rate", "0"), "give a count and a time above 0"),
        (("--all", "--rate", "-3"), "isn't a valid rate"),
        (("r", "--rate", "3"), "--rate can't be combined with RUN"),
        (("r", "--dry-run"), "--dry-run can't be combined with RUN"),
        (("r", "--payload", "{"), "--payload isn't valid JSON"),
    ],
)
async def test_invalid_rates_and_flags_that_exclude_a_run_are_refused(ctl, member, wrong, problem):
    ended = await ctl("dlq", "redrive", *wrong)

    assert ended.code == 2
    assert problem in ended.err
    assert member.requests == []
