"""Drains: which workers take no new work because somebody said so.

Revision 0011. Only adds, so that a member of the version before goes on beside it. It doesn't look
for drains itself; the worker, told by a member of this version, grants it nothing.
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
CREATE TABLE drains (
    worker text PRIMARY KEY,  -- its name: it outlives incarnations
    drained_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    drained_by text NOT NULL,
    reason text NOT NULL
);
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves the table where it is: nothing reads it."""
