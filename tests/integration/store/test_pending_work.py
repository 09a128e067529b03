"""Which kinds of an owner's work have rows."""

from __future__ import annotations

from schedd.store.reconcile.stats import PendingWork
from support.store import World

NOTHING = PendingWork(
    chains=False, backfills=False, redrives=False, notifications=False, pause_changes=False
)
ID = "gen_random_uuid()"

BACKFILL = f"""
INSERT INTO backfills (backfill_id, job_id, first, last, instants, max_parallel, priority,
    created_by)
VALUES ({ID}, {ID}, now(), now(), '{{}}', 1, 2, 'ann')
"""
REDRIVE = f"""
INSERT INTO redrives (redrive_id, shard, namespace, rate, total, open, created_by)
VALUES ({ID}, 0, 'default', 1, 1, true, 'ann')
"""
NOTIFICATION = f"""
INSERT INTO notifications (notification_id, way, shard, job_id, kind, run_id, scheduled_at,
    failures, held_back, occurred_at, ready_at, next_at)
VALUES ({ID}, 'EMAIL', 0, {ID}, 'FAILURE', {ID}, now(), 1, 0, now(), now(), now())
"""
ARRIVAL = f"""
INSERT INTO chain_arrivals (child, scheduled_at, root, parent, run_id, state)
VALUES ({ID}, now(), {ID}, {ID}, {ID}, 'SUCCEEDED')
"""
ROWS = {
    "chains": [f"INSERT INTO chain_edges VALUES ({ID}, {ID})", ARRIVAL],
    "backfills": [BACKFILL],
    "redrives": [REDRIVE],
    "notifications": [NOTIFICATION],
    "pause_changes": [
        f"INSERT INTO resumptions VALUES ({ID}, 0, now() + interval '1 day')",
        f"INSERT INTO failing VALUES ({ID}, 0, 3, 3)",
    ],
}
ENDED = [
    "UPDATE backfills SET open = false",
    "UPDATE redrives SET open = false",
    "UPDATE failing SET failures = failures - 1",
    "DELETE FROM chain_edges",
    "DELETE FROM chain_arrivals",
    "DELETE FROM notifications",
    "DELETE FROM resumptions",
]


async def test_work_of_a_kind_is_pending_while_there_are_rows_that_arent_ended(
    world: World,
) -> None:
    me = await world.member()
    for kind, statement in [(kind, one) for kind, rows in ROWS.items() for one in rows]:
        assert await me.store.owner.pending_work() == NOTHING
        await world.sql(statement)
        found = await me.store.owner.pending_work()
        assert [name for name in ROWS if getattr(found, name)] == [kind]
        for ending in ENDED:
            await world.sql(ending)
    assert await me.store.owner.pending_work() == NOTHING
