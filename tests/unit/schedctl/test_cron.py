"""`schedctl cron explain` works without a cluster."""


def test_explain_prints_text_next_instants_and_notes(offline):
    ended = offline(
        *("cron", "explain", "30 2 * * *", "--tz", "Europe/Riga", "--next", "2"),
        *("--after", "2026-03-28T00:30:00Z", "-o", "json"),
    )
    assert ended.code == 0, ended.err
    assert list(ended.data) == ["expression", "timeZone", "description", "next", "notes"]
    assert ended.data["timeZone"] == "Europe/Riga"
    assert ended.data["next"] == ["2026-03-29T02:30:00+02:00", "2026-03-30T02:30:00+03:00"]


def test_after_is_exclusive(offline):
    ended = offline(
        *("cron", "explain", "0 0 * * *", "--after", "2026-01-01T00:00:00Z"),
        *("--next", "1", "-o", "json"),
    )
    assert ended.data["next"] == ["2026-01-02T00:00:00+00:00"]


def test_a_table_is_text(offline):
    ended = offline("cron", "explain", "0 9 * * 1", "--after", "2026-01-01T00:00:00Z")
    assert ended.lines[1] == "  2026-01-05 09:00:00+00:00  Mon"


def test_a_wrong_expression_zone_or_instant_is_2_in_three_lines(offline):
    for wrong in (["61 * * * *"], ["0 0 31 2 *"], ["* * * * *", "--tz", "Europe/Rgia"]):
        ended = offline("cron", "explain", *wrong)
        assert ended.code == 2, wrong
        assert len(ended.err.splitlines()) == 3
    assert offline("cron", "explain", "@daily", "--after", "yesterday").code == 2


def test_an_expression_whose_times_the_clocks_always_skip_is_refused(offline):
    words = ("cron", "explain", "30 2 * 3 7L", "--tz", "Europe/Berlin")
    assert offline(*words).code == 0
    ended = offline(*words, "--dst-gap", "skip")
    assert ended.code == 2
    assert "never matches: the clocks of Europe/Berlin skip all its times" in ended.err


def test_clock_changes_are_explained_for_each_time(offline):
    words = ("cron", "explain", "0,30 2 * * *", "--tz", "Europe/Berlin", "--after")
    back = offline(*words, "2027-10-30T12:00:00Z").out
    assert "runs once for each, in the first pass (02:00+02:00)" in back
    both = offline(*words, "2027-10-30T12:00:00Z", "--dst-overlap", "both").out
    assert "runs twice for each, in the first pass" in both
    assert "runs once for all of them, at 03:00+02:00" in back
