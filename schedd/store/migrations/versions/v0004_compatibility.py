"""The schema says which versions may work on it.

Revision 0004. Only adds. Code of the revisions before can't read what is said here, and refuses to
start on any newer schema: 0004 is the first that a later schema can admit.
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

compatible_from = "0004"
"""The oldest revision whose code works on this schema. Every step names it: one that only adds
keeps that of the step before; one that takes away or changes the meaning of what older code reads
or writes names the oldest that can do without (docs/decisions, "Schema compatibility").
`schedd migrate` writes down the newest step's.
"""

EXPAND = """
CREATE TABLE schema_compatibility (
    one bool PRIMARY KEY DEFAULT true CHECK (one),
    compatible_from text NOT NULL
);
INSERT INTO schema_compatibility (compatible_from) VALUES ('0004');
"""


def upgrade() -> None:
    """Add what is missing."""
    op.execute(EXPAND)


def downgrade() -> None:
    """Whoever goes back leaves the table where it is: nothing reads it."""
