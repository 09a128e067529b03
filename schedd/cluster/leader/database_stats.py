"""The leader's readings of database statistics. Only the leader reads, so each costs one query."""

from schedd.core.cluster.database_stats import LOOK_EVERY, StatsWatch
from schedd.core.events import DatabaseSeen, Emit
from schedd.store.reconcile.stats_store import StatisticsStore
from schedkit.tasks import Loop


def vitals(store: StatisticsStore, emit: Emit) -> Loop:
    """Return the loop of one term that reads the statistics and emits them."""
    watch = StatsWatch()

    async def look() -> None:
        emit(DatabaseSeen(watch.add_reading(await store.read_database_stats())))

    return Loop("database stats", look, interval=LOOK_EVERY.total_seconds())
