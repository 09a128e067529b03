"""Retention, and what is in the result store: who has to be deleted with its run.

Revision 0016. Only adds, so that a member of the version before goes on beside it: it deletes
nothing, tells nobody of whole logs, and says of a large result that nothing was returned.
"""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
ALTER TABLE outputs ADD COLUMN stored bool NOT NULL DEFAULT false;  -- the result store has more
ALTER TABLE results ADD COLUMN stored bool NOT NULL DEFAULT false;
CREATE INDEX outputs_oldest ON outputs (scheduled_at, run_id);

ALTER TABLE jobs ADD COLUMN retention interval;   -- of its runs; NULL: as the cluster is set up
CREATE INDEX jobs_retention ON jobs (job_id) WHERE retention IS NOT NULL;

CREATE TABLE unwanted (              -- objects in the result store whose rows are gone
    place text PRIMARY KEY,          -- a key, or with a '/' behind it all below it
    shard int NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX unwanted_oldest ON unwanted (shard, since);
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves the tables where they are: nothing reads them."""
