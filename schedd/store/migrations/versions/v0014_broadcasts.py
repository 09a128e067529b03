"""Broadcasts: a run with a child for each worker that could do it.

Revision 0014. Only adds, so that a member of the version before goes on beside it. It leaves jobs
alone that are broadcast, for their definitions are of a level that it doesn't know; it stores what
their children came to, and lists children among the runs.
"""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
ALTER TABLE runs
    ADD COLUMN parent uuid,   -- the broadcast that it is a child of
    ADD COLUMN target text,   -- the name of the one worker that a child is for
    ADD COLUMN children int;  -- of a broadcast that has begun: how many it has
CREATE INDEX runs_children ON runs (parent) WHERE parent IS NOT NULL;
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves the columns where they are: nothing reads them."""
