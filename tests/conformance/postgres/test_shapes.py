"""How PostgreSQL handles partitions, plans and promotions: more facts that the protocol needs."""

from __future__ import annotations

import psycopg2
import pytest

from schedctl.dev.servers import postgres as cluster
from schedd.store.cluster.fence import LOCK_SHARDS, TIMELINE
from schedd.store.schema import migrate
from support.postgres import private_postgres, promote
from support.sessions import Postgres

ME = "00000000-0000-0000-0000-00000000000a"


def test_a_partitioned_table_is_unique_by_its_partition_key_alone(postgres: Postgres) -> None:
    """So `runs` is partitioned by `scheduled_at`, and its primary key is (job, instant)'s."""
    postgres.now(
        "CREATE TABLE p (id int, at timestamptz, made timestamptz) PARTITION BY RANGE (at)"
    )

    postgres.now("ALTER TABLE p ADD PRIMARY KEY (at, id)")

    with pytest.raises(psycopg2.errors.FeatureNotSupported):
        postgres.now("CREATE UNIQUE INDEX ON p (id, made)")


def test_an_instant_without_a_partition_is_refused(postgres: Postgres) -> None:
    """So there is a default one."""
    postgres.now("CREATE TABLE p (id int, at timestamptz) PARTITION BY RANGE (at)")

    with pytest.raises(psycopg2.errors.CheckViolation):
        postgres.now("INSERT INTO p VALUES (1, now())")

    postgres.now("CREATE TABLE p_default PARTITION OF p DEFAULT")
    postgres.now("INSERT INTO p VALUES (1, now())")


def test_an_update_from_a_batch_needs_no_order_of_the_batch(postgres: Postgres) -> None:
    """A plan may hash: rows are locked by a statement with ORDER BY before (P1.6)."""
    postgres.now("CREATE TABLE r (id int PRIMARY KEY, state text)")
    postgres.now("INSERT INTO r SELECT g, 'RUNNING' FROM generate_series(1, 20000) g")
    postgres.now("ANALYZE r")

    plan = postgres.now(
        """EXPLAIN UPDATE r SET state = 'SUCCEEDED' FROM unnest(%s::int[]) b(id)
        WHERE r.id = b.id""",
        list(range(1, 3001)),
    )

    assert any("Hash Join" in line for [line] in plan)


def test_after_a_promotion_no_claim_of_the_timeline_before_holds() -> None:
    with private_postgres(copied=True) as server:
        dsn = server.create_database("promoted")
        migrate.upgrade(dsn)
        [[before]] = server.execute(f"SELECT {TIMELINE}", dsn)
        server.execute(f"UPDATE shards SET owner = '{ME}', epoch = 5, timeline = {before}", dsn)
        assert _locked(dsn, before) == 256

        promote(server)

        [[after]] = server.execute(f"SELECT {TIMELINE}", dsn)
        assert int(str(after)) > int(str(before))
        assert _locked(dsn, before) == 0
        assert _locked(dsn, after) == 0, (
            "nor one that claims to be current: it must take the lock again"
        )


def _locked(dsn: str, timeline: object) -> int:
    """How many shards the fence gives to a claim of this timeline."""
    with cluster.connect(dsn) as session, session.cursor() as cursor:
        claim = {"ids": [*range(256)], "epochs": [5] * 256, "tenure": ME, "timeline": timeline}
        cursor.execute(LOCK_SHARDS.text, claim)
        [(shards, _)] = cursor.fetchall()
        return len(shards or ())
