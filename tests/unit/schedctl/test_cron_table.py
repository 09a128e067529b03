"""`schedctl cron lint|diff|collide|forecast` on crontabs, manifests, expressions and jobs."""

import json
from pathlib import Path

import pytest

from schedproto.v1 import job_pb2, job_service_pb2

SERVER = Path(__file__).parent.parent / "core" / "crontabs" / "server"
MONDAY = "2026-11-23T00:00:00Z"

MANIFESTS = """\
name: hourly
cron: "0 * * * *"
shell: {argv: ["true"]}
---
name: twice
cron:
  - "30 2 * * *"
  - "*/7 * * * *"
time_zone: Europe/Berlin
shell: {argv: ["true"]}
---
name: other
every: 1h
shell: {argv: ["true"]}
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.yaml"
    path.write_text(MANIFESTS)
    return path


def test_lint_reports_each_finding_at_its_line(offline, jobs):
    ended = offline("cron", "lint", "-f", str(jobs), "--after", MONDAY)
    assert ended.code == 0
    heads = [line for line in ended.lines if not line.startswith("  try: ")]
    assert [line.split(": ")[0].rpartition(":")[2] for line in heads] == ["2", "7", "7", "8"]
    assert "warning: 0 * * * *: runs at minute 0 of every hour" in heads[0]
    assert "4 expressions: 0 errors, 4 warnings" in ended.err
    assert offline("cron", "lint", "-f", str(jobs), "--strict").code == 1


def test_explain_shows_how_many_jobs_share_the_minute(offline, jobs):
    words = ("cron", "explain", "0 2,3 * * *", "--after", MONDAY, "--next", "2", "-f", str(jobs))
    ended = offline(*words)
    assert [line.split("  ")[-1] for line in ended.lines[1:]] == [
        "3 more in this minute",
        "3 more in this minute",
    ], ended.err
    assert offline(*words, "--job", "hourly", "-o", "json").data["beside"] == [2, 2]
    assert "beside" not in offline("cron", "explain", "0 2 * * *", "-o", "json").data


def test_explain_reports_uncounted_jobs(offline):
    ended = offline("cron", "explain", "0 * * * *", "--next", "1", "-f", str(SERVER))
    assert ended.code == 0
    assert "left out: " in ended.err


def test_diff_goes_by_the_policy_for_clock_changes(offline):
    words = ("cron", "diff", "30 2 * * *", "30 2 1-24,26-31 10 *", "--tz", "Europe/Berlin")
    window = ("--from", "2026-10-25T00:00:00Z", "--for", "1d", "-o", "json")
    assert offline(*words, *window).data["first"]["only"] == 1
    assert offline(*words, "--dst-overlap", "both", *window).data["first"]["only"] == 2


def test_lint_of_a_crontab_exits_with_1_for_an_error(offline):
    ended = offline("cron", "lint", "-f", str(SERVER), "-o", "json")
    assert ended.code == 1
    (error,) = [one for one in ended.data if one["level"] == "ERROR"]
    assert error["where"].endswith("server:79")
    assert error["name"] == "warm-caches"
    assert "on_demand" in error["hint"]


def test_lint_takes_expressions_and_prints_nothing_for_valid_ones(offline):
    assert offline("cron", "lint", "17 4 * * *").code == 0
    ended = offline("cron", "lint", "17 4 * * *", "@reboot", "*/7 * * * *", "-o", "jsonl")
    assert ended.code == 1
    assert [json.loads(line)["where"] for line in ended.lines] == ["argument 2", "argument 3"]


def test_lint_reads_manifests_and_crontabs_from_a_pipe(offline, monkeypatch):
    for text, where in ((MANIFESTS, "stdin:2"), ("# mine\n0 * * * * /bin/x\n", "stdin:2")):
        monkeypatch.setattr("schedctl.timetables.timetables.standard_input", text.encode)
        assert offline("cron", "lint", "-f", "-").out.startswith(f"{where}: warning: 0 * * * *")


def test_a_manifest_that_can_t_be_read_is_an_error_of_lint(offline, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("name: a\ncorn: x\n")
    ended = offline("cron", "lint", "-f", str(path))
    assert ended.code == 1
    assert "bad.yaml:2: error: corn" in ended.out


def test_a_missing_crontab_exits_with_2(offline):
    ended = offline("cron", "forecast", "-f", "/nowhere/crontab")
    assert ended.code == 2
    assert ended.err.startswith("error: the file /nowhere/crontab can't be read: No such file")


def test_diff_lists_both_sides_and_exits_with_1(offline):
    ended = offline(
        *("cron", "diff", "0 9 * * *", "0 9 * * mon-fri", "--tz", "Europe/Riga"),
        *("--from", MONDAY, "--for", "7d"),
    )
    assert ended.code == 1
    assert ended.lines[0] == "< 0 9 * * *: every day at 09:00"
    assert "2 only in the first, 0 only in the second, 5 in both" in ended.lines[2]
    assert ended.lines[3:] == [
        "  < 2026-11-28 09:00:00+02:00  Sat",
        "  < 2026-11-29 09:00:00+02:00  Sun",
    ]


def test_diff_of_the_same_instants_exits_with_0(offline):
    ended = offline("cron", "diff", "@hourly", "0 0-23 * * *", "-o", "json")
    assert ended.code == 0, ended.err
    assert ended.data["first"]["only"] == ended.data["second"]["only"] == 0


def test_diff_of_a_wrong_expression_is_2_in_three_lines(offline):
    ended = offline("cron", "diff", "0 9 * * *", "0 25 * * *")
    assert ended.code == 2
    assert len(ended.err.splitlines()) == 3


def test_forecast_shows_the_peak_its_jobs_and_the_flattened_version(offline):
    ended = offline("cron", "forecast", "-f", str(SERVER), "--from", MONDAY)
    assert ended.code == 0, ended.err
    assert "60 schedules start 39,422 runs" in ended.lines[0]
    assert ended.lines[3].startswith("2026-11-23 00:00Z  Mon  40      7      console-cart-expire, ")
    assert "the busiest minute 40 → 7" in ended.out
    assert "console-cart-expire: 0 * * * * → H * * * *" in ended.out
    assert "server:79: expression: @reboot" in ended.err


def test_forecast_as_json_has_each_hour_and_each_job(offline):
    ended = offline("cron", "forecast", "-f", str(SERVER), "--from", MONDAY, "-o", "json")
    forecast = ended.data
    assert (forecast["from"], forecast["to"]) == (
        "2026-11-23T00:00:00.000Z",
        "2026-11-30T00:00:00.000Z",
    )
    assert len(forecast["hours"]) == 168
    assert sum(hour["runs"] for hour in forecast["hours"]) == forecast["runs"] == 39_422
    assert (
        len(forecast["hottest"][0]["jobs"])
        == forecast["peak"]
        == forecast["flattened"]["peakBefore"]
        == 40
    )


def test_a_rewritten_crontab_changes_only_minutes_and_reaches_the_forecast(offline, tmp_path):
    ended = offline("cron", "forecast", "-f", str(SERVER), "--from", MONDAY, "--rewritten")
    before = SERVER.read_text().splitlines()
    assert len(ended.lines) == len(before)
    changed = [(a, b) for a, b in zip(before, ended.lines, strict=True) if a != b]
    assert 20 < len(changed) < 60
    assert all(a.endswith(b.partition("\t")[2]) for a, b in changed)
    flatter = tmp_path / "crontab"
    flatter.write_text(ended.out)
    again = offline("cron", "forecast", "-f", str(flatter), "--from", MONDAY, "-o", "json")
    assert again.data["peak"] == 7


def test_rewritten_manifests_are_a_patch(offline, jobs, tmp_path):
    more = tmp_path / "more.yaml"
    more.write_text(MANIFESTS.replace("hourly", "second").replace("other", "fourth"))
    ended = offline("cron", "forecast", "-f", str(jobs), "-f", str(more), "--rewritten")
    assert f"--- {jobs}" in ended.lines
    assert '+cron: "H * * * *"' in ended.lines
    assert any(line.startswith("+phase: ") for line in ended.lines)


def test_an_expression_that_ends_like_another_is_rewritten_in_place(offline, tmp_path):
    lists = tmp_path / "lists.yaml"
    lists.write_text(
        'name: one\ncron: ["10,30 * * * *", "0 * * * *"]\nshell: {argv: ["true"]}\n---\n'
        'name: two\ncron: ["7,9 0 * * * *", "0 * * * *"]  # each hour\nshell: {argv: ["true"]}\n'
    )
    ended = offline("cron", "forecast", "-f", str(lists), "--from", MONDAY, "--rewritten")
    written = [line for line in ended.lines if line.startswith("+cron")]
    assert '+cron: ["10,30 * * * *", "H * * * *"]' in written
    assert '+cron: ["7,9 H * * * *", "H * * * *"]  # each hour' in written


SPELLINGS = """\
name: anchored
cron: &hourly "0 * * * *"
shell: {argv: [x]}
---
name: folded
cron: >-
  0 * * * *
shell: {argv: [x]}
---
name: literal
cron: |
  0 * * * *
shell: {argv: [x]}
---
name: tagged
cron: !!str 0 * * * *
shell: {argv: [x]}
---
name: plain
cron: 0 * * * *
shell: {argv: [x]}
"""


@pytest.mark.parametrize("spelling", SPELLINGS.split("---\n"), ids=lambda one: one.split()[1])
def test_a_rewrite_of_each_spelling_is_printed_or_named_with_exit_1(offline, tmp_path, spelling):
    name = spelling.split()[1]
    path = tmp_path / "jobs.yaml"
    spelled = [
        spelling.replace(name, f"{name}-{n}").replace("&hourly", f"&hourly{n}") for n in "abcd"
    ]
    path.write_text("---\n".join(spelled))
    words = ("cron", "forecast", "-f", str(path), "--from", MONDAY)
    moves = offline(*words, "-o", "json").data["flattened"]["moves"]
    assert len(moves) > 1
    ended = offline(*words, "--rewritten")
    named = [line for line in ended.err.splitlines() if line.startswith("left out: ")]
    printed = [line for line in ended.lines if line.startswith("+") and "H * * * *" in line]
    assert len(named) + len(printed) == len(moves)
    assert all("(an anchor, a block or a tag); edit this line by hand" in line for line in named)
    assert ended.code == (1 if named else 0)


def test_an_expression_in_a_block_is_shown_on_one_line(offline, tmp_path):
    path = tmp_path / "jobs.yaml"
    path.write_text("name: a\ncron: |\n  0 * * * *\nshell: {argv: [x]}\n")
    ended = offline("cron", "lint", "-f", str(path))
    assert ended.lines[0].startswith(
        f"{path}:2: warning: 0 * * * *: runs at minute 0 of every hour"
    )


def test_a_rewrite_that_cant_be_made_in_place_is_named_and_leaves_1(offline, tmp_path):
    path = tmp_path / "jobs.yaml"
    path.write_text(SPELLINGS)
    ended = offline("cron", "forecast", "-f", str(path), "--rewritten", "--from", MONDAY)
    plain = offline("cron", "forecast", "-f", str(path), "--from", MONDAY)
    moves = [line.split()[1].rstrip(":") for line in plain.lines if "→ H" in line]
    assert moves
    named = [line.split(": ")[2] for line in ended.err.splitlines() if "left out" in line]
    shown = [line for line in ended.lines if line.startswith("+") and "H * * * *" in line]
    assert len(named) + len(shown) == len(moves)
    assert ended.code == 1
    assert {"folded", "literal"} & set(named)


def test_an_aliased_expression_is_named_and_nothing_else_is_changed(offline, tmp_path):
    path = tmp_path / "jobs.yaml"
    aliased = "".join(
        f"- {{name: n{number}, cron: {cron}, shell: {{argv: [x]}}}}\n"
        for number, cron in enumerate(['&a "0 * * * *"', "*a", "*a", "*a"])
    )
    path.write_text(aliased)
    words = ("cron", "forecast", "-f", str(path), "--from", MONDAY)
    moves = offline(*words, "-o", "json").data["flattened"]["moves"]
    ended = offline(*words, "--rewritten")
    assert ended.code == 1
    left_out = [line for line in ended.err.splitlines() if line.startswith("left out: ")]
    assert [line.split(": ")[2] for line in left_out] == [move["name"] for move in moves]
    assert all("(an anchor, a block or a tag)" in line for line in left_out)
    assert ended.out == ""


def test_a_rewritten_crontab_keeps_what_cron_takes_for_one_line(offline, tmp_path):
    path = tmp_path / "crontab"
    text = "".join(
        f"# a{odd}0 * * * * b\n0 * * * * /bin/j{n}\n" for n, odd in enumerate("\u2028\f\v\x85\x1c")
    )
    path.write_bytes(text.encode())
    linted = offline("cron", "lint", "-f", str(path))
    assert linted.code == 0, linted.out
    ended = offline("cron", "forecast", "-f", str(path), "--rewritten", "--from", MONDAY)
    assert ended.code == 0
    before, after = text.split("\n"), ended.out.split("\n")
    assert len(before) == len(after)
    assert [one for one in before if one.startswith("#")] == [
        one for one in after if one.startswith("#")
    ]


def test_a_rewritten_crontab_has_as_many_runs_on_nights_with_a_clock_change(offline, tmp_path):
    path, flat = tmp_path / "crontab", tmp_path / "flat"
    stepped = [f"*/15 2 * * * /bin/stepped{n}" for n in range(4)]
    fixed = [f"0 2 * * * /bin/fixed{n}" for n in range(4)]
    path.write_text("".join(f"{line}\n" for line in stepped + fixed))
    zone = ("--tz", "Europe/Berlin")
    words = ("cron", "forecast", *zone, "--from", MONDAY)
    ended = offline(*words, "-f", str(path), "--rewritten")
    assert ended.code == 0, ended.err
    assert ended.lines[:4] == stepped
    assert ended.lines[4:] != fixed
    flat.write_text(ended.out)
    for night in ("2027-03-27T12:00:00Z", "2027-10-30T12:00:00Z"):
        window = ("cron", "forecast", *zone, "--from", night, "--for", "1d", "-o", "json")
        before, after = (offline(*window, "-f", str(one)).data["runs"] for one in (path, flat))
        assert before == after


@pytest.mark.parametrize(
    ("zone", "problem", "hint"),
    [
        ("GMT+2", "'GMT+2'", "Etc/GMT+2 means UTC−2; for UTC+2 write Etc/GMT-2, or a city"),
        ("GMT-5", "'GMT-5'", "Etc/GMT-5 means UTC+5; for UTC−5 write Etc/GMT+5, or a city"),
        ("GMT+10", "'GMT+10'", "Etc/GMT+10 means UTC−10; for UTC+10 write Etc/GMT-10, or a city"),
    ],
)
def test_an_offset_as_a_zone_is_refused_with_the_zone_that_has_it(offline, zone, problem, hint):
    linted = offline("cron", "lint", "17 4 * * *", "--tz", zone, "-o", "json")
    assert linted.code == 1
    (found,) = linted.data
    assert found["level"] == "ERROR"
    assert problem in found["problem"]
    assert hint in found["hint"]
    explained = offline("cron", "explain", "17 4 * * *", "--tz", zone)
    assert explained.code == 2
    assert problem in explained.err
    assert hint in explained.err


def test_a_zone_whose_sign_is_reversed_is_a_warning_with_its_offset(offline):
    ended = offline("cron", "lint", "17 4 * * *", "--tz", "Etc/GMT+2", "-o", "json")
    (found,) = ended.data
    assert (found["level"], found["rule"]) == ("WARNING", "zone-offset")
    assert "Etc/GMT+2 means UTC−2" in found["problem"]
    assert "for UTC+2 write Etc/GMT-2" in found["hint"]


@pytest.mark.parametrize(
    ("at", "both"),
    [
        ("2027-03-28T02:30:00", "2027-03-28T01:30:00+01:00 or 2027-03-28T03:30:00+02:00"),
        ("2027-10-31T02:30:00", "2027-10-31T02:30:00+02:00 or 2027-10-31T02:30:00+01:00"),
    ],
)
def test_a_local_time_that_clocks_skip_or_repeat_is_an_error_with_both_times(
    offline, tmp_path, at, both
):
    path = tmp_path / "jobs.yaml"
    path.write_text(f"name: once\nat: {at}\ntime_zone: Europe/Berlin\nshell: {{argv: [x]}}\n")
    ended = offline("cron", "lint", "-f", str(path), "-o", "json")
    assert ended.code == 1
    (found,) = ended.data
    assert both in found["hint"]
    path.write_text(path.read_text().replace(at, "2027-12-24T18:00:00"))
    assert offline("cron", "lint", "-f", str(path)).code == 0


def test_a_job_whose_runs_end_each_other_is_a_warning(offline, tmp_path):
    path = tmp_path / "jobs.yaml"
    more = "\nshell: {argv: [x]}\n---\n"
    path.write_text(
        f"name: long\nevery: 5m\noverlap: cancel_other{more}"
        f"name: short\nevery: 5m\noverlap: cancel_other\ntimeout: 5m{more}"
        f"name: nights\ncron: 5 3 * * *\noverlap: terminate_other{more}"
        f"name: minutes\ncron: 0-5,30 3 * * *\noverlap: terminate_other\ntimeout: 2m{more}"
    )
    found = offline("cron", "lint", "-f", str(path), "-o", "json").data
    problems = {one["name"]: one["problem"] for one in found if one["rule"] == "never-finishes"}
    assert problems.keys() == {"long", "minutes"}
    assert "takes longer than 5 minutes never finishes (timeout 1 hour)" in problems["long"]


TRAPS = {
    "0 9 * * * /bin/x\r\n1 9 * * * /bin/y\r\n": (
        *("1", "crlf", "2 lines with CRLF: cron passes the \\r to commands", "with LF"),
    ),
    "0 9 * * * /bin/x": (
        *("1", "final-newline", "cron ignores this line, or rejects the file", "add a newline"),
    ),
    "0 9 * * * date +%F\n": (
        *("1", "percent", "passes the rest of the line to standard input", "write \\%"),
    ),
    "TZ=America/New_York\n0 9 * * 1-5 /bin/x\n": (
        *("1", "tz", "TZ=America/New_York changes only the time zone of commands"),
        "for schedules, write CRON_TZ=America/New_York",
    ),
    "\ufeff0 9 * * * /bin/x\n": (
        *("1", "byte-order-mark", "reads as part of the first line", "save the file as UTF-8"),
    ),
    "# mine\n0 9 L * * /bin/x\n": (
        "2",
        "not-cron",
        "cron can't read this",
        "move the job to a manifest",
    ),
    "0 9 * * * lbdumps /usr/bin/dump\n0 9 1 * * freeside /usr/bin/f\n": (
        *("1", "user-column", "may have a user column (lbdumps, freeside)"),
        "else --no-user-column",
    ),
}


@pytest.mark.parametrize(("text", "expected"), TRAPS.items(), ids=lambda one: str(one[:1]))
def test_silent_behavior_of_cron_is_a_warning_at_its_line(offline, tmp_path, text, expected):
    path = tmp_path / "crontab"
    path.write_bytes(text.encode())
    line, rule, problem, hint = expected
    ended = offline("cron", "lint", "-f", str(path), "-o", "json")
    (found,) = [one for one in ended.data if one["rule"] == rule]
    assert found["where"] == f"{path}:{line}"
    assert found["level"] == "WARNING"
    assert problem in found["problem"]
    assert hint in found["hint"]
    assert ended.code == 0


def test_a_system_crontab_of_other_users_is_read_with_the_flag(offline, tmp_path):
    path = tmp_path / "crontab"
    path.write_text("9 9 * * * lbdumps /usr/bin/dump\n9 8 1 * * freeside /usr/bin/bill\n")
    ended = offline("cron", "lint", "-f", str(path), "--user-column", "-o", "json")
    assert (ended.code, ended.data) == (0, [])
    forecast = offline("cron", "forecast", "-f", str(path), "--user-column", "-o", "wide")
    assert "dump" in forecast.out
    assert "lbdumps" not in forecast.out


def test_a_line_of_a_system_crontab_without_its_user_is_an_error_at_that_line(offline, tmp_path):
    path = tmp_path / "crontab"
    path.write_text(
        "9 1 * * * root /bin/a\n*/5 * * * * cd /srv/x && run\n9 2 * * * /usr/bin/b now\n"
    )
    ended = offline("cron", "lint", "-f", str(path), "-o", "json")
    assert ended.code == 1
    assert [(one["level"], one["where"]) for one in ended.data] == [
        ("ERROR", f"{path}:2"),
        ("ERROR", f"{path}:3"),
    ]
    assert all("the user is missing" in one["problem"] for one in ended.data)


@pytest.mark.parametrize(
    "text", ["CRON_TZ=Asia/Tokyo\nTZ=Asia/Tokyo\n0 9 * * * x\n", "0 9 * * * a\n"]
)
def test_a_crontab_without_traps_has_no_warning(offline, tmp_path, text):
    path = tmp_path / "crontab"
    path.write_text(text)
    assert offline("cron", "lint", "-f", str(path), "-o", "json").data == []


def test_advice_for_a_crontab_never_has_what_cron_cant_read(offline, tmp_path):
    path = tmp_path / "crontab"
    lines = ("0 * * * * /bin/a", "*/7 * * * * /bin/b", "0 9 1-7 * 1 /bin/c", "5 9 31 * * /bin/d")
    daily = ("0 0 * * * /bin/e", "@daily /bin/f", "* 2 * * * /bin/g", "30 2 * * * /bin/h")
    path.write_text("".join(f"{line}\n" for line in (*lines, *daily)))
    ended = offline("cron", "lint", "-f", str(path), "--tz", "Europe/Berlin", "-o", "json")
    rules = {one["rule"] for one in ended.data}
    assert {"herd", "uneven-step", "either-day", "short-months", "clock-change"} <= rules
    assert [one["rule"] for one in ended.data].count("herd") == 3
    for hint in (one["hint"] for one in ended.data):
        assert not [word for word in (" H ", "@every", "#", " L ", "dst") if word in hint], hint


def test_only_one_of_two_expressions_is_rewritten_to_the_same_h(offline, tmp_path):
    herd = tmp_path / "herd.yaml"
    several = 'name: several\ncron: ["0 * * * *", "30 5 * * *"]\nshell: {argv: ["true"]}\n'
    others = "".join(
        f"---\nname: other-{n}\ncron: '{m} * * * *'\nshell: {{argv: ['true']}}\n"
        for m in (0, 30)
        for n in range(m, m + 8)
    )
    herd.write_text(several + others)
    words = ("cron", "forecast", "--from", MONDAY)
    before = offline(*words, "-f", str(herd), "-o", "json").data["runs"]
    patch = offline(*words, "-f", str(herd), "--rewritten").lines
    written = [line[1:] for line in patch if line.startswith("+cron: [")]
    assert len(written) == 1, patch
    assert written[0].count("H") == 1
    alone = tmp_path / "alone.yaml"
    alone.write_text(several.replace(several.splitlines()[1], written[0]))
    others_alone = tmp_path / "others.yaml"
    others_alone.write_text(others.removeprefix("---\n"))
    both = offline(*words, "-f", str(alone), "-f", str(others_alone), "-o", "json").data
    assert both["runs"] == before


def test_collide_counts_instants_and_can_fail(offline):
    arguments = ("cron", "collide", "0 * * * *", "0 0 * * *", "--from", MONDAY)
    ended = offline(*arguments)
    assert ended.code == 0
    assert "2 schedules, 7 times with more than 1 starts, at most 2" in ended.lines[0]
    assert "expression-1, expression-2" in ended.lines[2]
    assert offline(*arguments, "--strict").code == 1
    assert offline(*arguments, "--strict", "--more-than", "2").code == 0


async def test_a_forecast_without_sources_covers_the_unpaused_jobs_of_the_cluster(ctl, member):
    def page(request: job_service_pb2.ListJobsRequest) -> job_service_pb2.ListJobsResponse:
        number = int(request.page_token or 0)
        jobs = [
            job_pb2.Job(name=f"job-{at}", cron=["0 * * * *"], paused=at == 0, max_runs=at // 29)
            for at in range(number, number + 10)
        ]
        for job in jobs:
            job.next_run_at.FromSeconds(1_800_000_000)
        more = str(number + 10) if number < 20 else ""
        if not more:  # its last run was made
            jobs.append(job_pb2.Job(name="over", cron=["* * * * *"], max_runs=3))
        return job_service_pb2.ListJobsResponse(jobs=jobs, next_page_token=more)

    member.say("ListJobs", page)
    ended = await ctl("cron", "forecast", "--from", MONDAY, "--rewritten")
    assert "left out: 1 paused jobs" in ended.err
    assert "left out: 1 jobs without a future scheduled time" in ended.err
    assert "max_runs is ignored, so later times are counted, too: 1 jobs" in ended.err
    assert "schedctl job patch job-29 --cron 'H * * * *'" in ended.lines
    ended = await ctl("cron", "collide", "--from", MONDAY, "-o", "json")
    assert ended.data["most"] == 29
