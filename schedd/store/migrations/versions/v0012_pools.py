"""Pools: how many runs of their jobs are under way at once, and how many start in a while.

Revision 0012. Only adds, so that a member of the version before goes on beside it: it leaves jobs
alone whose definitions name a pool, and calls on it that write none leave `jobs.pool` as it is.
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
CREATE TABLE pools (
    namespace text NOT NULL,
    name text NOT NULL,
    shard int NOT NULL,               -- of all its jobs: whoever changes it locks that row first
    run_limit int,                    -- NULL: however many
    rate_count int,                   -- NULL: however often
    rate_seconds double precision,
    version int NOT NULL DEFAULT 1,
    paused boolean NOT NULL DEFAULT false,
    pause_note text NOT NULL DEFAULT '',
    paused_by text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by text NOT NULL,
    PRIMARY KEY (namespace, name)
);

CREATE TABLE pool_turns (             -- an attempt that was handed out in a pool
    run_id uuid NOT NULL,
    token bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    pool text NOT NULL,               -- namespace/name
    assigned_at timestamptz NOT NULL,
    start_by timestamptz NOT NULL,
    ended boolean NOT NULL DEFAULT false,  -- known to be over: it takes no place of the limit
    counted_at timestamptz,           -- of an ended one: when it started, for the rate
    PRIMARY KEY (run_id, token)
) WITH (fillfactor = 80);
CREATE INDEX pool_turns_open ON pool_turns (pool) WHERE NOT ended;
CREATE INDEX pool_turns_recent ON pool_turns (pool, start_by);

ALTER TABLE jobs ADD COLUMN pool text;
CREATE INDEX jobs_pool ON jobs (namespace, pool) WHERE pool IS NOT NULL AND deleted_at IS NULL;
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves the tables where they are: nothing reads them."""
