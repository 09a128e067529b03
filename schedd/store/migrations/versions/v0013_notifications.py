"""Notifications: what is to be told of jobs, and what was.

Revision 0013. Only adds, so that a member of the version before goes on beside it. It leaves jobs
alone that want anything told, for their definitions are of a level that it doesn't know.
"""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
CREATE TABLE notices (                     -- what is remembered of a job between two tidings
    job_id uuid PRIMARY KEY,
    failures int NOT NULL DEFAULT 0,       -- in a row
    told bool NOT NULL DEFAULT false,      -- one of them was told
    failure_at timestamptz,                -- of each kind, when the last was told, or is to be
    dead_letter_at timestamptz,
    recovery_at timestamptz,
    late_at timestamptz
);

CREATE TABLE notifications (               -- what isn't delivered yet: one row for each way
    notification_id uuid NOT NULL,
    way text NOT NULL,                     -- WEBHOOK, COMMAND or EMAIL
    shard int NOT NULL,
    job_id uuid NOT NULL,
    kind text NOT NULL,
    run_id uuid NOT NULL,                  -- the newest that it tells of
    scheduled_at timestamptz NOT NULL,
    failures int NOT NULL,                 -- in a row
    held_back int NOT NULL,                -- by the silence that it waits for the end of
    occurred_at timestamptz NOT NULL,
    ready_at timestamptz NOT NULL,
    next_at timestamptz NOT NULL,          -- not tried before
    tries int NOT NULL DEFAULT 0,
    tried_by uuid,                         -- the tenure that tries it now
    error text NOT NULL DEFAULT '',        -- of the last try
    PRIMARY KEY (notification_id, way)
);
CREATE INDEX notifications_next ON notifications (shard, next_at);
CREATE INDEX notifications_tried ON notifications (shard) WHERE tried_by IS NOT NULL;
CREATE INDEX notifications_job ON notifications (job_id, kind);

ALTER TABLE runs ADD COLUMN told_late bool NOT NULL DEFAULT false;
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves the tables where they are: nothing reads them."""
