"""Usage errors name the flag and the help of the command, before any request is sent."""

import os
import shlex
import socket
import time
from pathlib import Path

import pytest

from schedctl.session import CONNECT_TIMEOUT


@pytest.mark.parametrize(
    ("line", "flag", "command"),
    [
        ("cron explain @daily --after yesterday", "--after", "cron explain"),
        ("job create a --at 12:00 -- true", "--at", "job create"),
        ("job create a --cron @daily --start +4q -- true", "--start", "job create"),
        ("job create a --cron @daily --end tomorrow -- true", "--end", "job create"),
        ("job pause a --until later", "--until", "job pause"),
        ("job next a --after 5", "--after", "job next"),
        ("job create a --cron @daily --timeout soon -- true", "--timeout", "job create"),
        ("submit --label x -- true", "--label", ""),
    ],
)
def test_a_wrong_value_names_its_flag_and_the_commands_own_help(offline, line, flag, command):
    ended = offline(*line.split())
    what, _why, remedy = ended.err.splitlines()
    assert ended.code == 2
    assert flag in what
    assert f"schedctl {command} --help" in remedy or not command


@pytest.mark.parametrize("flag", ["--at", "--start", "--end"])
async def test_an_instant_may_be_counted_from_now_in_every_flag(ctl, member, flag):
    member.say("CreateJob", lambda request: request.job)
    schedule = () if flag == "--at" else ("--cron", "@daily")
    began = time.time()
    ended = await ctl("job", "create", "a", *schedule, flag, "+1h", "--", "true")
    assert ended.code == 0, ended.err
    (request,) = member.received("CreateJob")
    stamp = getattr(request.job, flag.removeprefix("--"))
    assert stamp.ToSeconds() == pytest.approx(began + 3600, abs=5)


def test_a_file_that_is_not_utf_8_is_named_with_its_line(offline, tmp_path: Path):
    manifest = tmp_path / "jobs.yaml"
    manifest.write_bytes(b"name: a\ncron: '@daily'\nshell: {argv: [\xff]}\n")
    ended = offline("apply", "-f", str(manifest))
    assert ended.code == 2
    assert f"{manifest}:3: the file isn't valid UTF-8: byte 0xff" in ended.err
    assert "try: save the file as UTF-8" in ended.err


@pytest.fixture
def silent():
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"127.0.0.1:{port}"


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", ["silent", "closed"])
def test_a_cluster_that_never_answers_exits_with_6_within_the_timeout(offline, request, endpoint):
    address = request.getfixturevalue(endpoint)
    began = time.monotonic()
    ended = offline("job", "list", "--endpoints", address)
    assert ended.code == 6
    assert time.monotonic() - began < 2 * CONNECT_TIMEOUT
    assert address in ended.err.splitlines()[0]


@pytest.mark.slow
def test_a_given_timeout_overrides_the_default_timeout(offline, closed):
    began = time.monotonic()
    assert offline("job", "list", "--endpoints", closed, "--timeout", "1s").code == 6
    assert time.monotonic() - began < CONNECT_TIMEOUT


def test_a_folder_below_a_file_is_a_usage_error(offline, tmp_path: Path):
    (tmp_path / "file").touch()
    ended = offline("dev", "down", "--dir", str(tmp_path / "file" / "cluster"))
    assert ended.code == 5
    assert "try: name another --dir" in ended.err


@pytest.mark.slow
def test_a_setting_that_no_daemon_knows_is_refused_before_anything_starts(offline, tmp_path):
    for setting in ("schedd.nonsense=3", "m2.nonsense=3", "workerd.nonsense=3"):
        ended = offline("dev", "up", "--detach", "--dir", str(tmp_path), "--set", setting)
        assert ended.code == 2, ended.err
        assert "unknown key 'nonsense'" in ended.err
        assert not (tmp_path / "state.json").exists()
        assert not (tmp_path / "etcd").exists()


@pytest.mark.slow
def test_a_refused_setting_leaves_nothing_behind_and_names_the_nearest(offline, tmp_path):
    fresh, used = tmp_path / "fresh", tmp_path / "used"
    used.mkdir()
    (used / "notes.txt").write_text("mine")
    (used / "w9.log").write_text("mine, too")
    for folder in (fresh, used):
        line = ("dev", "up", "--detach", "--dir", str(folder), "--set", "schedd.member_tll=3s")
        ended = offline(*line)
        assert ended.code == 2, ended.err
        assert "did you mean 'member_ttl'?" in ended.err
    assert not fresh.exists()
    assert {path.name for path in used.iterdir()} == {"notes.txt", "w9.log"}


@pytest.mark.parametrize("flag", ["--env", "--label", "--require"])
def test_a_key_that_is_given_twice_is_refused(offline, flag):
    ended = offline("job", "create", "a", "--on-demand", flag, "A=1", flag, "A=2", "--", "true")
    assert ended.code == 2
    assert f"{flag} A is given twice" in ended.err


@pytest.mark.parametrize(
    "line",
    [
        "job patch a --timeout 5s --etag ''",
        "submit --idempotency-key '' -- true",
        "job trigger a --idempotency-key ''",
        "job create a --cron @daily --tz '' -- true",
    ],
)
def test_an_empty_guard_is_refused(offline, line):
    ended = offline(*shlex.split(line))
    assert ended.code == 2
    assert "the value is empty" in ended.err


def test_a_limit_of_zero_at_once_is_refused(offline):
    ended = offline("job", "create", "a", "--on-demand", "--overlap", "allow:0", "--", "true")
    assert ended.code == 2
    assert "must be at least 1" in ended.err


NO_JSON = ["NaN", "-Infinity", "1e400", '{"a": [1E999]}', "{'a': 1}", r'"\ud800"', r'{"\udfFF": 1}']


@pytest.mark.parametrize("payload", NO_JSON)
@pytest.mark.parametrize("command", ["submit --payload {} -- true", "job trigger a --payload {}"])
def test_a_payload_that_json_parsers_reject_is_refused(offline, command, payload):
    ended = offline(*shlex.split(command.format(shlex.quote(payload))))
    assert ended.code == 2
    assert len(ended.err.splitlines()) == 3
    assert "--payload isn't valid JSON" in ended.err


@pytest.mark.parametrize("payload", NO_JSON)
def test_a_file_called_json_has_to_hold_json(offline, tmp_path: Path, payload):
    given = tmp_path / "given.json"
    given.write_text(payload)
    ended = offline("submit", "--payload", f"@{given}", "--", "true")
    assert ended.code == 2, ended.err
    assert "given.json isn't valid JSON" in ended.err


def test_a_payload_that_is_nested_too_deeply_is_refused_with_the_limit(offline, tmp_path: Path):
    deep = tmp_path / "deep.json"
    for levels in (101, 900, 100_000):
        deep.write_text("[" * levels + "]" * levels)
        ended = offline("submit", "--payload", f"@{deep}", "--", "true")
        assert ended.code == 2, ended.err
        assert len(ended.err.splitlines()) == 3
        assert "at most 100 levels" in ended.err


def test_a_timeout_before_the_first_try_is_a_deadline(offline, silent):
    ended = offline("job", "list", "--endpoints", silent, "--timeout", "1ms")
    assert ended.code == 7
    assert "timed out before a connection was open" in ended.err


def test_a_job_is_paused_by_its_own_call_and_never_by_a_patch(offline):
    assert "--paused" in offline("job", "create", "--help").out
    assert "--paused" not in offline("job", "patch", "--help").out
    assert offline("job", "patch", "a", "--paused").code == 2


@pytest.mark.parametrize("line", ["cluster transfer-leader {}", "job get {}", "submit -- {}"])
def test_bytes_that_are_not_text_are_refused(offline, line):
    ended = offline(*(word.format(os.fsdecode(b"\xff\xfe")) for word in line.split()))
    assert ended.code == 2
    assert "isn't valid UTF-8" in ended.err


def test_a_group_without_a_command_prints_its_help(offline):
    ended = offline("cluster")
    assert ended.code == 2
    assert ended.err.startswith("Usage: schedctl cluster")
    assert "\n  pause " in ended.err


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("doctor", "did you mean schedctl cluster doctor?"),
        ("get", "did you mean schedctl job get or schedctl run get?"),
        ("wokers", 'did you mean "worker"?'),
    ],
)
def test_a_command_of_another_group_is_named(offline, word, remedy):
    ended = offline(word)
    assert (ended.code, remedy in ended.err) == (2, True), ended.err


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["jbo"], "job"),
        (["job", "lits"], "list"),
        (["cron", "explian"], "explain"),
        (["job", "list", "--limti", "5"], "--limit"),
        (["submit", "--wiat"], "--wait"),
    ],
)
def test_misspelt_words_get_a_suggestion(words, near, offline):
    ended = offline(*words)
    assert ended.code == 2
    assert f'did you mean "{near}"?' in ended.err
    assert len(ended.err.splitlines()) == 3


@pytest.mark.parametrize("line", ["job list --nope", "auth token create --expires 30d"])
def test_dashes_alone_suggest_no_option(line, offline):
    ended = offline(*line.split())
    assert ended.code == 2
    assert "did you mean" not in ended.err
    assert "--help" in ended.err.splitlines()[2]


@pytest.mark.parametrize("words", [["job", "get"], ["run", "list", "--limit", "x"], ["-o", "xml"]])
def test_wrong_usage_is_2_in_three_lines(words, offline):
    ended = offline(*words)
    assert ended.code == 2
    assert len(ended.err.splitlines()) == 3
    assert ended.out == ""


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("simulate capacity", 'schedctl has no command "simulate"'),
        ("job revert etl", 'schedctl job has no command "revert"'),
        ("apply --prune -f jobs", "--prune"),
    ],
)
def test_a_command_or_option_that_doesnt_exist_is_2_in_three_lines(line, what, offline):
    ended = offline(*line.split())
    assert ended.code == 2
    assert what in ended.err.splitlines()[0]
    assert len(ended.err.splitlines()) == 3
