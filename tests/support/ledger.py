"""The ledger of a job read back: which instants its rows account for, each how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from schedclient import Run

SECOND = timedelta(seconds=1)


def covered(rows: Iterable[Run], step: timedelta = SECOND) -> Counter[datetime]:
    """Instant → how many rows stand for it, merged rows spread out over the instants they count."""
    instants: Counter[datetime] = Counter()
    for row in rows:
        assert row.scheduled_at is not None
        instants.update(row.scheduled_at + step * n for n in range(row.count))
        if row.scheduled_until is not None:
            last = row.scheduled_at + step * (row.count - 1)
            assert row.scheduled_until == last, f"a row of {row.count} ends at another instant"
    return instants


def every_instant(first: datetime, last: datetime, step: timedelta = SECOND) -> Counter[datetime]:
    """The instants from `first` to `last`, each once: what a ledger without fault covers."""
    return Counter(first + step * n for n in range((last - first) // step + 1))
