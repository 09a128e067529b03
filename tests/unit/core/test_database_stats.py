"""The age of the oldest transaction, as far as a role without rights sees it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from schedd.core.cluster.statistics import DatabaseSnapshot, StatsWatch

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def snapshot(
    after: int, oldest: int = 0, oldest_id: int = 9, *, holds: bool = True
) -> DatabaseSnapshot:
    return DatabaseSnapshot(NOON + after * SECOND, oldest * SECOND, oldest_id, holds, 0)


def test_a_transaction_with_visible_times_has_its_reported_age() -> None:
    assert StatsWatch().add_reading(snapshot(0, oldest=90)) == 90 * SECOND


def test_a_transaction_with_only_a_visible_id_ages_from_reading_to_reading() -> None:
    watch = StatsWatch()
    ages = [watch.add_reading(snapshot(after, oldest_id=700)) for after in (0, 30, 60)]
    assert ages == [0 * SECOND, 30 * SECOND, 60 * SECOND]


def test_another_transaction_id_restarts_the_age_at_zero() -> None:
    watch = StatsWatch()
    watch.add_reading(snapshot(0, oldest_id=700))
    assert watch.add_reading(snapshot(30, oldest_id=701)) == 0 * SECOND
    assert watch.add_reading(snapshot(60, oldest_id=701)) == 30 * SECOND


def test_an_id_without_a_known_holder_has_no_age() -> None:
    """An idle server reports the id of the next transaction, or of one with no later end."""
    watch = StatsWatch()
    assert watch.add_reading(snapshot(0, oldest_id=700, holds=False)) == 0 * SECOND
    assert watch.add_reading(snapshot(600, oldest_id=700, holds=False)) == 0 * SECOND
    assert watch.add_reading(snapshot(630, oldest_id=700)) == 30 * SECOND


def test_the_older_of_two_ages_counts() -> None:
    watch = StatsWatch()
    watch.add_reading(snapshot(0, oldest_id=700))
    assert watch.add_reading(snapshot(30, oldest=45, oldest_id=700)) == 45 * SECOND
    assert watch.add_reading(snapshot(60, oldest=5, oldest_id=700)) == 60 * SECOND
