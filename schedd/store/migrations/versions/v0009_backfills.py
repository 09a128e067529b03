"""Backfills: which instants of the past a job is to be run for, and how many at a time.

Revision 0009. Only adds, so that a member of the version before goes on beside it. It makes no runs
of a backfill, which waits for an owner that does; those that are made it takes for triggered ones.
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
CREATE TABLE backfills (
    backfill_id uuid PRIMARY KEY,
    job_id uuid NOT NULL,
    first timestamptz NOT NULL,
    last timestamptz NOT NULL,
    instants timestamptz[] NOT NULL,  -- in their order
    made int NOT NULL DEFAULT 0,      -- of so many of them, from the first on, a run was made
    open bool NOT NULL DEFAULT true,  -- more are to be made
    overlap text,                     -- NULL: as its job says
    max_parallel int NOT NULL,
    priority smallint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text NOT NULL,
    cancelled_at timestamptz,
    cancelled_by text NOT NULL DEFAULT ''
);
CREATE INDEX backfills_open ON backfills (job_id) WHERE open;
CREATE INDEX backfills_newest ON backfills (created_at, backfill_id);
CREATE INDEX backfills_job ON backfills (job_id, created_at);

ALTER TABLE runs ADD COLUMN backfill uuid;  -- that made it
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves the table where it is: nothing reads it."""
