"""Tenures, the leader's term, and who owns which shard at which epoch (P2.5).

    open_tenure ─→ take ─→ (owner's transactions) ─→ release
                     ↑ free, one's own, or a fenced tenure's
    raise_term ─→ fence

Invariants
- A tenure is the permission to take; the shard row is the fence of every write.
- `epoch` and `term` only grow, by at least one, and past the seconds since 2024: a restore from a
  backup can't make them repeat.
- A shard is taken only at the epoch that the member saw. Each takeover is recorded in `shard_log`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection

from schedd.core.cluster.cluster_events import LEADER, ClusterEventRecord, EventKind, LossReason
from schedd.core.ids import Epoch, Id, ShardId, TenureId, Term, Timeline
from schedd.core.runs.model import Claim, ShardRow, Tenure
from schedd.core.runs.records import DatabaseProbe
from schedd.store.cluster import cluster_events
from schedd.store.cluster.fence import application_name, ending_blockers, lock_shards
from schedd.store.connection import database_identity
from schedd.store.connection.database import Database, in_autocommit, in_transaction
from schedd.store.connection.primary_selection import TIMELINE
from schedd.store.statements import arrays
from schedd.store.statements.operations import operations
from schedkit import failpoints
from schedkit.records import dataclass

BEFORE_FENCE = failpoints.blocking("fence.before_commit")
BEFORE_TAKE = failpoints.blocking("take.before_commit")

FLOOR = "extract(epoch FROM clock_timestamp())::bigint - 1704067200"
"""Seconds since 2024: greater than any epoch of a restored backup."""

LEAP = 65_536
"""Epochs that one `outdo` may skip. `FLOOR` already covers a restored database."""

TAKE = f"""
WITH taken AS (
    UPDATE shards s SET owner = %(tenure)s, timeline = %(timeline)s,
        epoch = GREATEST(s.epoch + 1, {FLOOR})
    FROM unnest(%(ids)s::int[], %(epochs)s::bigint[]) b(id, epoch)
    WHERE s.id = b.id AND s.epoch = b.epoch AND %(timeline)s = (SELECT {TIMELINE})
      AND (s.owner IS NULL OR s.owner = %(tenure)s
           OR EXISTS (SELECT FROM tenures t WHERE t.id = s.owner AND t.fenced_at IS NOT NULL))
    RETURNING s.id, s.epoch
)
INSERT INTO shard_log (shard, epoch, tenure)
SELECT id, epoch, %(tenure)s FROM taken ORDER BY id
RETURNING shard, epoch
"""

SHARDS_OF = """
SELECT id, owner, epoch, timeline,
    EXISTS (SELECT FROM tenures WHERE id = %s AND fenced_at IS NULL)
FROM shards ORDER BY id
"""


def cluster_id(connection: Connection) -> str:
    """Return the id that `schedd migrate` generated for this database."""
    return str(connection.exec_driver_sql("SELECT cluster_id FROM cluster").scalar_one())


OPEN = """
INSERT INTO tenures (id, member, opened_at, grpc, http, version, prefix)
VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING id
"""

BEFORE = """
SELECT unplanned, fenced_at FROM tenures WHERE member = %s AND id <> %s
ORDER BY opened_at DESC LIMIT 1
"""

FOREIGN = """
SELECT DISTINCT t.member FROM tenures t
WHERE t.prefix <> %(own)s
  AND t.opened_at > (SELECT min(opened_at) FROM tenures WHERE prefix = %(own)s)
  AND (t.fenced_at IS NULL
    OR t.fenced_at > statement_timestamp() - interval '15 min' AND NOT EXISTS (
      SELECT FROM tenures n
      WHERE n.member = t.member AND n.opened_at > t.opened_at AND n.prefix = %(own)s))
ORDER BY t.member LIMIT 20
"""
"""A prefix whose claim was written again has a new id, and its members open new tenures under it.
Tenures from before that are the cluster's own. A running member of another prefix that is fenced
opens another tenure at once, later than those.
"""

NAME_OF = "SELECT member FROM tenures WHERE id = %s"


def open_tenure(connection: Connection, tenure: Tenure) -> None:
    """Write the tenure's row. Repeating it changes nothing. A lost member counts as returned."""
    name = arrays.clean(tenure.member)
    opened = connection.exec_driver_sql(
        OPEN,
        (
            tenure.id,
            name,
            tenure.opened_at,
            arrays.clean(tenure.grpc),
            arrays.clean(tenure.http),
            arrays.clean(tenure.version),
            tenure.prefix,
        ),
    )
    if opened.first() is None:
        return
    before = connection.exec_driver_sql(BEFORE, (name, tenure.id)).first()
    if before is not None and before.unplanned:
        member, since = f"member/{name}", f"lost since {_instant(before.fenced_at)}"
        event = ClusterEventRecord(EventKind.MEMBER_RETURNED, member, member, detail=since)
        cluster_events.record(connection, [event])


def _instant(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def foreign_members(connection: Connection, prefix: Id) -> list[str]:
    """Return members that joined under another etcd prefix while this one was used, and whose
    tenures ran within the last 15 minutes.
    """
    return [str(name) for (name,) in connection.exec_driver_sql(FOREIGN, {"own": prefix})]


def unfenced_tenures(connection: Connection) -> list[Tenure]:
    """Return the tenures that may still take shards."""
    rows = connection.exec_driver_sql(
        "SELECT id, member, opened_at FROM tenures WHERE fenced_at IS NULL ORDER BY id"
    )
    return [Tenure(*row) for row in rows]


def fenced(connection: Connection, tenures: Sequence[TenureId]) -> frozenset[TenureId]:
    rows = connection.exec_driver_sql(
        "SELECT id FROM tenures WHERE id = ANY (%s::uuid[]) AND fenced_at IS NOT NULL",
        (arrays.ids(tenures),),
    )
    return frozenset(TenureId(row[0]) for row in rows)


def fence(
    connection: Connection,
    tenures: Sequence[TenureId],
    *,
    lost: LossReason | None = None,
    why: str = "",
) -> None:
    """Fence these tenures, by id. A fenced one keeps its time. `lost`: why the members were lost;
    None: a clean shutdown. `why`: the same as text.
    """
    ids = {"ids": arrays.ids(tenures), "unplanned": lost is not None}
    connection.exec_driver_sql(
        "SELECT 1 FROM tenures WHERE id = ANY (%(ids)s::uuid[]) ORDER BY id FOR NO KEY UPDATE", ids
    )
    rows = connection.exec_driver_sql(
        "UPDATE tenures SET fenced_at = clock_timestamp(), unplanned = %(unplanned)s"
        " WHERE id = ANY (%(ids)s::uuid[]) AND fenced_at IS NULL RETURNING id, member",
        ids,
    ).all()
    if lost is None:
        return
    leader = connection.exec_driver_sql(
        "SELECT t.member FROM term JOIN tenures t ON t.id = term.leader"
    ).scalar()
    by_leader = lost is LossReason.LEASE_EXPIRED and leader
    cluster_events.record(
        connection,
        [
            ClusterEventRecord(
                EventKind.MEMBER_LOST,
                f"member/{member}",
                f"member/{leader if by_leader else member}",
                lost.value,
                why,
            )
            for _, member in rows
        ],
    )


def holds_term(connection: Connection, term: Term) -> bool:
    """Return whether this is still the term. The term can't change until the transaction ends."""
    rows = connection.exec_driver_sql("SELECT 1 FROM term WHERE term = %s FOR SHARE", (term,))
    return rows.first() is not None


def read_term(connection: Connection) -> Term:
    return Term(connection.exec_driver_sql("SELECT term FROM term").scalar_one())


def raise_term(connection: Connection, seen: Term, leader: TenureId, above: int = 0) -> Term | None:
    """Raise the term above `above` by compare-and-set. None: the term isn't `seen` any more."""
    before = connection.exec_driver_sql("SELECT leader FROM term").scalar()
    raised = connection.exec_driver_sql(
        f"UPDATE term SET term = GREATEST(term + 1, {FLOOR}, %s), leader = %s"
        " WHERE term = %s RETURNING term",
        (above + 1, leader, seen),
    ).scalar_one_or_none()
    if raised is None:
        return None
    name = connection.exec_driver_sql(NAME_OF, (leader,)).scalar() or str(leader)
    old = connection.exec_driver_sql(NAME_OF, (before,)).scalar() if before else None
    detail = f"{name} leads, term {raised}" + (f"; before: {old}" if old else "")
    event = ClusterEventRecord(EventKind.LEADER_CHANGED, LEADER, f"member/{name}", detail=detail)
    cluster_events.record(connection, [event])
    return Term(raised)


def read_shards(connection: Connection) -> list[ShardRow]:
    rows = connection.exec_driver_sql("SELECT id, owner, epoch, timeline FROM shards ORDER BY id")
    return [ShardRow(*row) for row in rows]


def read_shards_of(connection: Connection, tenure: TenureId) -> tuple[list[ShardRow], bool]:
    """Return all shard rows, by id, and whether the tenure may take shards: it has a row, and isn't
    fenced.
    """
    rows = connection.exec_driver_sql(SHARDS_OF, (tenure,)).all()
    return [ShardRow(*row[:4]) for row in rows], all(row[4] for row in rows)


def take_shards(
    connection: Connection, tenure: TenureId, timeline: Timeline, seen: dict[ShardId, Epoch]
) -> dict[ShardId, Epoch]:
    """Take the free shards among these; nothing for a fenced tenure, or on another timeline."""
    unfenced = connection.exec_driver_sql(
        "SELECT 1 FROM tenures WHERE id = %s AND fenced_at IS NULL FOR SHARE", (tenure,)
    )
    if unfenced.first() is None:
        return {}
    ids = arrays.numbers(seen)
    connection.exec_driver_sql(
        "SELECT 1 FROM shards WHERE id = ANY (%s::int[]) ORDER BY id FOR NO KEY UPDATE", (ids,)
    )
    arguments = {
        "tenure": tenure,
        "timeline": timeline,
        "ids": ids,
        "epochs": arrays.numbers(seen.values()),
    }
    rows = connection.exec_driver_sql(TAKE, arguments)
    return {ShardId(shard): Epoch(epoch) for shard, epoch in rows}


def outdo(connection: Connection, shard: ShardId, seen: Epoch) -> None:
    """Raise the shard's epoch above one that was seen in a token. Its owner takes the shard again.
    At most by `LEAP`: a worker's report must not use up the epochs.
    """
    connection.exec_driver_sql(
        "UPDATE shards SET epoch = LEAST(%s + 1, epoch + %s) WHERE id = %s AND epoch <= %s",
        (seen, LEAP, shard, seen),
    )


def release(connection: Connection, claim: Claim) -> None:
    """Release the shards that the claim still owns, after its running transactions."""
    owned = lock_shards(connection, claim)
    connection.exec_driver_sql(
        "UPDATE shards SET owner = NULL WHERE id = ANY (%s::int[])", (arrays.numbers(owned),)
    )


@operations("membership")
@dataclass(frozen=True, slots=True)
class MembershipStore:
    database: Database

    async def probe(self) -> DatabaseProbe:
        """Read the server's clock, timeline and role. Raises Unavailable if the database isn't the
        known one.
        """
        known = self.database.lineage.known
        probe = await self.database.read(database_identity.probe_server)
        database_identity.compare(self.database.lineage, probe, known)
        return probe

    cluster_id = in_autocommit(cluster_id)

    async def open_tenure(self, tenure: Tenure) -> None:
        """Write the tenure's row, and connect under its name from now on."""
        self.database.rename(application_name(tenure.id))
        await self.database.call(open_tenure, tenure)

    unfenced_tenures = in_autocommit(unfenced_tenures)
    fenced = in_autocommit(fenced)

    async def fence_own(self, tenure: TenureId, why: str = "") -> None:
        """Fence the member's own tenure: a clean shutdown. With `why`, the member counts as lost
        until it returns.
        """
        lost = LossReason.TENURE_ENDED if why else None
        await self.database.call(fence, [tenure], lost=lost, why=why)

    async def fence(self, tenures: Sequence[TenureId], term: Term) -> bool:
        """Fence these tenures if the term is still this one. False: the term has ended. Ends
        sessions that block the write.
        """

        def body(connection: Connection) -> bool:
            if not holds_term(connection, term):
                return False
            with ending_blockers(self.database, connection, tenures):
                fence(connection, tenures, lost=LossReason.LEASE_EXPIRED)
            BEFORE_FENCE()
            return True

        return await self.database.call(body)

    losses = in_autocommit(cluster_events.losses)
    returns = in_autocommit(cluster_events.returns)
    foreign_members = in_autocommit(foreign_members)
    event_before_term = in_autocommit(cluster_events.before_term)
    events_after = in_autocommit(cluster_events.after)
    read_term = in_autocommit(read_term)
    raise_term = in_transaction(raise_term)
    read_shards = in_autocommit(read_shards)
    read_shards_of = in_autocommit(read_shards_of)

    async def take_shards(
        self, tenure: TenureId, timeline: Timeline, seen: dict[ShardId, Epoch]
    ) -> dict[ShardId, Epoch]:
        """Take the shards among these that have the seen epoch, and are free, owned by this tenure
        or by a fenced one. Returns the new epochs. Ends blocking sessions of fenced tenures.
        """

        def body(connection: Connection) -> dict[ShardId, Epoch]:
            with ending_blockers(self.database, connection):
                taken = take_shards(connection, tenure, timeline, seen)
            BEFORE_TAKE()
            return taken

        return await self.database.call(body) if seen else {}

    async def release(self, claim: Claim) -> None:
        if claim.epochs:
            await self.database.call(release, claim)
