"""The leader looks at the database now and then: one member does, so that a look costs one."""

from __future__ import annotations

from schedd.core.cluster.database_stats import LOOK_EVERY, StatsWatch
from schedd.core.events import DatabaseSeen, Emit
from schedd.store.reconcile.stats_store import SurveyStore
from schedkit.tasks import Loop


def vitals(store: SurveyStore, emit: Emit) -> Loop:
    """The loop of one term that looks, and tells what it saw."""
    watch = StatsWatch()

    async def look() -> None:
        emit(DatabaseSeen(watch.saw(await store.look())))

    return Loop("vitals", look, interval=LOOK_EVERY.total_seconds())
