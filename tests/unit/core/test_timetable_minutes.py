"""Times as bits equal the times that schedules return one by one."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from schedd.core.schedule.compiled_schedule import (
    CronSchedule,
    EverySchedule,
    OnDemand,
    ScheduleBounds,
)
from schedd.core.schedule.cron import EPOCH, DstGap, DstOverlap, DstPolicy, parse
from schedd.core.schedule.scheduled_times import CronInstants, EveryInstants, OneInstant
from schedd.core.schedule.timetable.load import MinuteTally, TimetableEntry, differ, row_of
from schedd.core.schedule.timetable.minutes import (
    MinuteGrid,
    clipped,
    count,
    first_of,
    grid_over,
    layers_of,
)

SEED = 20261122
ZONES = ("UTC", "Europe/Riga", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
CHANGES = (
    datetime(2026, 3, 28, 12, tzinfo=UTC),
    datetime(2026, 10, 24, 12, tzinfo=UTC),
    datetime(2026, 11, 1, tzinfo=UTC),
    datetime(2026, 10, 3, 12, tzinfo=UTC),
    datetime(2026, 3, 8, tzinfo=UTC),
    datetime(2027, 1, 24, tzinfo=UTC),  # a border of the zones' blocks, at no whole minute
)
FIELDS = (
    ("0", "*/20", "5,35", "17"),
    ("*", "0", "30", "*/7", "10-20/3", "59"),
    ("*", "2", "1-3", "2,3", "*/5", "0,23"),
    ("*", "*", "*", "L", "*/2", "13", "15W"),
    ("*", "*", "*", "*/3", "oct,nov"),
    ("*", "*", "*", "mon-fri", "0", "5#2"),
)
POLICIES = tuple(DstPolicy(gap, overlap) for gap in DstGap for overlap in DstOverlap)


def expression(draw: random.Random) -> str:
    fields = [draw.choice(values) for values in FIELDS]
    if draw.random() < 0.1:
        return f"@every {draw.choice((1, 7, 45, 60, 90, 3601))}s"
    return " ".join(fields if draw.random() < 0.3 else fields[1:])


def seconds_of(layers, grid: MinuteGrid) -> list[int]:
    return first_of(layers, grid, 10**9)


@pytest.mark.slow
def test_the_bits_of_an_expression_are_its_times():
    draw = random.Random(SEED)
    for _ in range(200):
        text, zone, dst = expression(draw), draw.choice(ZONES), draw.choice(POLICIES)
        grid = grid_over(draw.choice(CHANGES), timedelta(minutes=draw.randrange(1, 2500)))
        parsed = parse(text, zone=zone, seed="")
        walked = list(parsed.seconds(grid.start - 1, grid.stop - 1, dst))
        layers = layers_of(CronInstants((parsed,), dst), grid)
        assert seconds_of(layers, grid) == walked, (text, zone, dst, grid)
        assert count(layers) == len(walked)


def test_a_union_counts_each_instant_once():
    draw = random.Random(SEED)
    grid = grid_over(CHANGES[0], timedelta(days=2))
    for _ in range(30):
        parts = tuple(parse(expression(draw), zone="Europe/Riga", seed="") for _ in range(3))
        dst = draw.choice(POLICIES)
        walked = {
            second for part in parts for second in part.seconds(grid.start - 1, grid.stop - 1, dst)
        }
        assert seconds_of(layers_of(CronInstants(parts, dst), grid), grid) == sorted(walked)


@pytest.mark.parametrize(
    ("interval", "phase"),
    [(1000, 0), (1500, 250), (7000, 3000), (59_000, 0), (60_000, 0), (90_500, 90_000)],
)
def test_an_interval_sets_the_bit_of_its_second(interval, phase):
    grid = grid_over(datetime(2026, 1, 1, 0, 3, tzinfo=UTC), timedelta(hours=3))
    found = EveryInstants(timedelta(milliseconds=interval), timedelta(milliseconds=phase))
    at, expected = EPOCH + timedelta(seconds=grid.start, microseconds=-1), []
    while (at := found.next_after(at)) < EPOCH + timedelta(seconds=grid.stop):
        expected.append((at - EPOCH) // timedelta(seconds=1))
    assert seconds_of(layers_of(found, grid), grid) == expected


def test_bounds_apply_to_the_second():
    grid = grid_over(datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=1))
    start = datetime(2026, 1, 1, 0, 10, 30, tzinfo=UTC)
    bounds = ScheduleBounds(start, start + timedelta(seconds=75))
    row = row_of(TimetableEntry("a", "", CronSchedule(("*/15 * * * * *",)), bounds=bounds), grid)
    first = grid.start + 630
    assert seconds_of(row.layers, grid) == [first + 15 * step for step in range(6)]


def test_a_cut_within_one_minute_and_over_many_is_exact():
    draw = random.Random(SEED)
    grid = grid_over(datetime(2026, 1, 1, tzinfo=UTC), timedelta(minutes=9))
    every = layers_of(EveryInstants(timedelta(seconds=1), timedelta(0)), grid)
    for _ in range(200):
        low, high = sorted(draw.randrange(-30, 600) + grid.start for _ in range(2))
        expected = list(range(max(low, grid.start), min(high, grid.stop)))
        assert seconds_of(clipped(every, grid, low, high), grid) == expected


def test_one_time_and_none_are_supported():
    grid = grid_over(datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=1))
    inside = OneInstant(datetime(2026, 1, 1, 0, 59, 59, tzinfo=UTC))
    assert seconds_of(layers_of(inside, grid), grid) == [grid.stop - 1]
    assert layers_of(OneInstant(datetime(2026, 1, 1, 1, tzinfo=UTC)), grid) == ()
    assert row_of(TimetableEntry("a", "", OnDemand()), grid).layers == ()


def test_a_tally_equals_a_count_of_the_list():
    draw = random.Random(SEED)
    tally, plain = MinuteTally(50), [0] * 50
    for _ in range(300):
        which, weight = draw.getrandbits(50), draw.choice((1, 1, 3, 60))
        tally.add(which, weight)
        plain = [n + weight * (which >> at & 1) for at, n in enumerate(plain)]
    assert tally.counts() == plain
    assert tally.total() == sum(plain)
    peak, having = tally.peak()
    assert peak == max(plain)
    assert [at for at in range(50) if having >> at & 1] == [
        at for at, n in enumerate(plain) if n == peak
    ]
    for limit in (0, 1, min(plain), max(plain) - 1, max(plain), 10**6):
        above = tally.above(limit)
        assert [above >> at & 1 for at in range(50)] == [int(n > limit) for n in plain]


def test_a_difference_lists_times_of_only_one_schedule():
    start = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
    hourly = TimetableEntry("a", "", CronSchedule(("0 * * * *",)))
    half = TimetableEntry("a", "", EverySchedule(timedelta(minutes=30)))
    found = differ(hourly, half, start, timedelta(hours=3), limit=2)
    assert (found.only_first, found.only_second, found.both) == (0, 3, 3)
    assert found.in_second == (
        datetime(2026, 1, 1, 0, 30, tzinfo=UTC),
        datetime(2026, 1, 1, 1, 30, tzinfo=UTC),
    )
    assert found.differ
    assert not differ(hourly, hourly, start, timedelta(hours=3), limit=2).differ


def test_a_zone_without_summer_time_differs_only_in_summer():
    start = datetime(2026, 1, 1, tzinfo=UTC)
    riga = TimetableEntry("a", "", CronSchedule(("0 9 * * *",), "Europe/Riga"))
    johannesburg = TimetableEntry("a", "", CronSchedule(("0 9 * * *",), "Africa/Johannesburg"))
    found = differ(riga, johannesburg, start, timedelta(days=365), limit=1)
    assert found.only_first == 210  # 29 March to 24 October
    assert found.in_first == (datetime(2026, 3, 29, 6, tzinfo=UTC),)
