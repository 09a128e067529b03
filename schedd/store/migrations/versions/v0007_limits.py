"""What a schedule counts against its `max_runs`, who is paused until when, and who fails in a row.

Revision 0007. Only adds, so that a member of the version before goes on beside it: it leaves jobs
alone that say any of it (their definitions are of a later level), and resumes nobody.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
ALTER TABLE timers ADD COLUMN fired int NOT NULL DEFAULT 0;

-- Jobs that are paused until an instant.
CREATE TABLE resumptions (
    job_id uuid PRIMARY KEY,
    shard int NOT NULL,
    resume_at timestamptz NOT NULL
);
CREATE INDEX resumptions_due ON resumptions (shard, resume_at);

-- Jobs with `pause_after_failures` whose newest runs failed: how many in a row, and how many do it.
CREATE TABLE failing (
    job_id uuid PRIMARY KEY,
    shard int NOT NULL,
    failures int NOT NULL,
    most int NOT NULL
);
CREATE INDEX failing_too_often ON failing (shard) WHERE failures >= most;
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves tables and column where they are: nothing reads them."""
