"""A table for the members' write probes: whether PostgreSQL takes writes, and has room for them.

Revision 0026. Only adds. Each probe needs a page of its own, so that a full disk shows: the padding
is neither compressed nor moved out of line.
"""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

compatible_from = "0004"

EXPAND = """
CREATE TABLE write_probes (padding bytea NOT NULL);
ALTER TABLE write_probes ALTER COLUMN padding SET STORAGE PLAIN;
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Older members don't use the table."""
