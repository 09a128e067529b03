"""The horizon of scans."""

from datetime import timedelta

from schedd.core.dispatch.deferred_runs import FAR, HORIZON, horizon


def test_a_scan_reads_past_the_end_of_the_next_one():
    assert horizon(0.0) == HORIZON
    assert horizon(8.0) == HORIZON + timedelta(seconds=16)


def test_no_scan_reads_beyond_the_limit_of_deferred_runs():
    assert horizon(600.0) == FAR
