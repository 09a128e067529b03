"""How far ahead scans read."""

from datetime import timedelta

from schedd.core.dispatch.deferred_runs import FAR, HORIZON, horizon


def test_a_scan_reads_past_the_end_of_the_next_one():
    assert horizon(0.0) == HORIZON
    assert horizon(8.0) == HORIZON + timedelta(seconds=16)


def test_no_scan_reads_further_than_what_is_left_in_rows():
    assert horizon(600.0) == FAR
