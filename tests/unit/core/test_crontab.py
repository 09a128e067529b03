"""Crontabs are read as cron reads them, each entry with its line."""

from pathlib import Path

from schedd.core.schedule.timetable.crontab import read_crontab

SERVER = Path(__file__).parent / "crontabs" / "server"


def only(text: str, **more):
    (line,) = read_crontab(text, **more).lines
    return line


def test_a_system_crontab_has_a_column_of_users():
    found = read_crontab(SERVER.read_text())
    assert found.system
    assert not found.unread
    assert len(found.lines) == 61
    first = found.lines[0]
    assert (first.number, first.schedule, first.user) == (9, "17 * * * *", "root")
    assert first.command == "cd / && run-parts --report /etc/cron.hourly"


def test_a_users_crontab_has_no_column_of_users():
    line = only("*/5 * * * * /usr/bin/true --flag\n")
    assert (line.user, line.command) == ("", "/usr/bin/true --flag")
    assert not read_crontab("0 5 * * * python job\n0 6 * * * make it\n").system


def test_the_caller_can_override_the_detected_kind():
    assert only("0 5 * * * www-data /bin/x", system=True).user == "www-data"
    assert only("0 5 * * * root /bin/x", system=False).command == "root /bin/x"


def test_variables_apply_to_the_lines_below():
    text = 'A=1\n0 1 * * * x\nA = "two words"\nCRON_TZ=Europe/Riga\n0 2 * * * y\n'
    above, below = read_crontab(text).lines
    assert (dict(above.environment), above.zone) == ({"A": "1"}, "")
    assert below.environment["A"] == "two words"
    assert below.zone == "Europe/Riga"


def test_a_percent_sign_ends_the_command_and_begins_its_input():
    line = only(r"0 9 * * * mail -s 100\% you%Hello,%all done \% here")
    assert line.command == "mail -s 100% you"
    assert line.stdin == "Hello,\nall done % here\n"
    assert only("0 9 * * * date").stdin is None


def test_macros_and_every_expressions_are_schedules():
    found = read_crontab(
        "@daily /bin/a\n@every 90s /bin/b --now\n@reboot /bin/c\n-*/5 * * * * /bin/d\n"
    )
    assert [line.schedule for line in found.lines] == [
        *("@daily", "@every 90s", "@reboot", "*/5 * * * *"),
    ]
    assert found.lines[1].command == "/bin/b --now"


def test_an_invalid_entry_is_reported_with_its_line():
    found = read_crontab("\n# fine\n* * * * *\nhello\n@daily\n0 1 * * * /bin/fine\n")
    assert [(one.number, one.problem) for one in found.unread] == [
        (3, "has a schedule but no command"),
        (4, "1 word: the line is neither an entry nor a variable"),
        (5, "@daily has no command"),
    ]
    assert [line.number for line in found.lines] == [6]
    (unread,) = read_crontab("0 1 * * * root\n", system=True).unread
    assert "'root' isn't a user followed by a command" in unread.problem


def test_names_are_made_from_the_program_and_unique():
    names = [line.name for line in read_crontab(SERVER.read_text()).lines]
    assert len(set(names)) == len(names)
    assert names[:6] == [
        *("run-parts", "run-parts-2", "run-parts-3", "run-parts-4"),
        *("console-cart-expire", "console-search-reindex"),
    ]
    assert {"runjobs.php", "pg_dump-shop", "vacuumdb", "push-2"} <= set(names)
    assert only("0 1 * * * FOO=1 nice -n 19 bash /opt/Back%up.SH").name == "back"
    assert only("0 1 * * * ((((").name == "job"


def test_a_line_without_its_user_is_an_error_at_that_line():
    text = "0 1 * * * root /bin/a\n*/5 * * * * cd /srv/x && run\n0 2 * * * /usr/bin/b now\n"
    found = read_crontab(text)
    assert found.system
    assert [line.number for line in found.lines] == [1]
    assert [(one.number, one.problem.split("'")[1]) for one in found.unread] == [
        (2, "cd"),
        (3, "/usr/bin/b"),
    ]
    assert all("user is missing" in one.problem for one in found.unread)


def test_a_header_with_a_user_marks_a_system_crontab_with_users_other_than_root():
    text = (
        "# m h dom mon dow user command\n0 1 * * * lbdumps /bin/dump\n0 2 * * * freeside /bin/x\n"
    )
    assert [line.user for line in read_crontab(text).lines] == ["lbdumps", "freeside"]
    plain = read_crontab(text.partition("\n")[2])
    assert [trap.rule for trap in plain.traps] == ["user-column"]
    assert not read_crontab("0 5 * * * backup --all\n").traps


def test_lines_are_split_at_newlines_only_and_words_at_spaces_and_tabs():
    text = "# a\u2028b\x0c0 1 * * * c\x0bd\n0 1 * * * /bin/x\n0\xa01 * * * /bin/y z\n"
    found = read_crontab(text)
    assert [line.number for line in found.lines] == [2]
    assert [(one.number, one.problem) for one in found.unread] == [
        (3, "has the space U+00A0, which cron can't read")
    ]
