"""Assignments that were lost with their worker, and may yet start there.

Revision 0003. Only adds, so that a member of the version before goes on beside it.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

EXPAND = """
-- A few rows, for the seconds until their start_by: the run's own row tells of its next assignment,
-- or of its end, as soon as it has one.
CREATE TABLE lost_assignments (
    run_id uuid NOT NULL,
    token bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    job_id uuid NOT NULL,
    generation int NOT NULL,
    worker text NOT NULL,
    incarnation uuid NOT NULL,
    start_by timestamptz NOT NULL,
    PRIMARY KEY (run_id, token)
);
CREATE INDEX lost_assignments_start_by ON lost_assignments (start_by);
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves the table where it is: nothing reads it."""
