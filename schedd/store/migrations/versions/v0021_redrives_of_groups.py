"""Whether a redrive is of submitted runs alone, or of a job alone; NULL: of whatever is named so.

Revision 0021. Only adds. An older member writes none: what it redrives is told as it was before.
"""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

compatible_from = "0004"


def upgrade() -> None:
    """Add what is missing."""
    op.execute("ALTER TABLE redrives ADD COLUMN submitted bool")


def downgrade() -> None:
    """Whoever goes back leaves it where it is: nobody reads it."""
