"""How old the oldest transaction is, by what a role without rights may see."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from schedd.core.cluster.database_stats import DatabaseSnapshot, StatsWatch

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def look(
    after: int, oldest: int = 0, oldest_id: int = 9, *, holds: bool = True
) -> DatabaseSnapshot:
    return DatabaseSnapshot(NOON + after * SECOND, oldest * SECOND, oldest_id, holds, 0)


def test_one_whose_times_may_be_seen_is_as_old_as_it_says() -> None:
    assert StatsWatch().add_reading(look(0, oldest=90)).oldest == 90 * SECOND


def test_one_of_which_only_the_id_is_seen_ages_from_look_to_look() -> None:
    watch = StatsWatch()
    ages = [watch.add_reading(look(after, oldest_id=700)).oldest for after in (0, 30, 60)]
    assert ages == [0 * SECOND, 30 * SECOND, 60 * SECOND]


def test_another_id_begins_anew() -> None:
    watch = StatsWatch()
    watch.add_reading(look(0, oldest_id=700))
    assert watch.add_reading(look(30, oldest_id=701)).oldest == 0 * SECOND
    assert watch.add_reading(look(60, oldest_id=701)).oldest == 30 * SECOND


def test_an_id_that_nobody_is_known_to_have_has_no_age() -> None:
    """On an idle server it is that of the next transaction, or of one nobody has ended after."""
    watch = StatsWatch()
    assert watch.add_reading(look(0, oldest_id=700, holds=False)).oldest == 0 * SECOND
    assert watch.add_reading(look(600, oldest_id=700, holds=False)).oldest == 0 * SECOND
    assert watch.add_reading(look(630, oldest_id=700)).oldest == 30 * SECOND


def test_of_two_the_older_counts() -> None:
    watch = StatsWatch()
    watch.add_reading(look(0, oldest_id=700))
    assert watch.add_reading(look(30, oldest=45, oldest_id=700)).oldest == 45 * SECOND
    assert watch.add_reading(look(60, oldest=5, oldest_id=700)).oldest == 60 * SECOND
